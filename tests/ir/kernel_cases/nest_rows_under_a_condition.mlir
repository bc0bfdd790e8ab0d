// Rows under a condition are added up one by one: no lane is read where the condition fails.
// MACHINES neon
def k(x: f32[4, 4], y: out(f32[4])):
    for r in unroll(4):
        y[r] = f32(0.0)
        for l in vector(4, lanes=4):
            s0: y[r] = addf(y[r], guard(cmpf.olt(x[r, l], f32(1.0)), x[r, l], f32(0.0)))

// LEVEL 5: neon
module {
  func.func @k(%p0: memref<16xf32>, %p1: memref<4xf32> {llvm.noalias}, %scratch: memref<1xi8> {llvm.noalias}, %tid: index, %nt: index) {
    %v1 = arith.constant 0 : index
    %v3 = arith.constant 0.0 : f32
    %v5 = arith.constant 1.0 : f32
    %v8 = arith.constant dense<0.0> : vector<4xf32>
    %v19 = arith.constant 1 : index
    %v20 = arith.constant 4 : index
    %v32 = arith.constant 2 : index
    %v33 = arith.constant 8 : index
    %v45 = arith.constant 3 : index
    %v46 = arith.constant 12 : index
    %v2 = arith.cmpi eq, %tid, %v1 : index
    scf.if %v2 {
      memref.store %v3, %p1[%v1] : memref<4xf32>
      %v4 = vector.load %p0[%v1] : memref<16xf32>, vector<4xf32>
      %v6 = vector.broadcast %v5 : f32 to vector<4xf32>
      %v7 = arith.cmpf olt, %v4, %v6 : vector<4xf32>
      %v9 = vector.maskedload %p0[%v1], %v7, %v8 : memref<16xf32>, vector<4xi1>, vector<4xf32> into vector<4xf32>
      %v10 = vector.broadcast %v3 : f32 to vector<4xf32>
      %v11 = arith.select %v7, %v9, %v10 : vector<4xi1>, vector<4xf32>
      %v12 = vector.extract_strided_slice %v11 {offsets = [0], sizes = [2], strides = [1]} : vector<4xf32> to vector<2xf32>
      %v13 = vector.extract_strided_slice %v11 {offsets = [2], sizes = [2], strides = [1]} : vector<4xf32> to vector<2xf32>
      %v14 = arith.addf %v13, %v12 : vector<2xf32>
      %v15 = vector.extract %v14[0] : f32 from vector<2xf32>
      %v16 = vector.extract %v14[1] : f32 from vector<2xf32>
      %v17 = arith.addf %v16, %v15 : f32
      %v18 = arith.addf %v3, %v17 : f32
      memref.store %v18, %p1[%v1] : memref<4xf32>
      memref.store %v3, %p1[%v19] : memref<4xf32>
      %v21 = vector.load %p0[%v20] : memref<16xf32>, vector<4xf32>
      %v22 = arith.cmpf olt, %v21, %v6 : vector<4xf32>
      %v23 = vector.maskedload %p0[%v20], %v22, %v8 : memref<16xf32>, vector<4xi1>, vector<4xf32> into vector<4xf32>
      %v24 = arith.select %v22, %v23, %v10 : vector<4xi1>, vector<4xf32>
      %v25 = vector.extract_strided_slice %v24 {offsets = [0], sizes = [2], strides = [1]} : vector<4xf32> to vector<2xf32>
      %v26 = vector.extract_strided_slice %v24 {offsets = [2], sizes = [2], strides = [1]} : vector<4xf32> to vector<2xf32>
      %v27 = arith.addf %v26, %v25 : vector<2xf32>
      %v28 = vector.extract %v27[0] : f32 from vector<2xf32>
      %v29 = vector.extract %v27[1] : f32 from vector<2xf32>
      %v30 = arith.addf %v29, %v28 : f32
      %v31 = arith.addf %v3, %v30 : f32
      memref.store %v31, %p1[%v19] : memref<4xf32>
      memref.store %v3, %p1[%v32] : memref<4xf32>
      %v34 = vector.load %p0[%v33] : memref<16xf32>, vector<4xf32>
      %v35 = arith.cmpf olt, %v34, %v6 : vector<4xf32>
      %v36 = vector.maskedload %p0[%v33], %v35, %v8 : memref<16xf32>, vector<4xi1>, vector<4xf32> into vector<4xf32>
      %v37 = arith.select %v35, %v36, %v10 : vector<4xi1>, vector<4xf32>
      %v38 = vector.extract_strided_slice %v37 {offsets = [0], sizes = [2], strides = [1]} : vector<4xf32> to vector<2xf32>
      %v39 = vector.extract_strided_slice %v37 {offsets = [2], sizes = [2], strides = [1]} : vector<4xf32> to vector<2xf32>
      %v40 = arith.addf %v39, %v38 : vector<2xf32>
      %v41 = vector.extract %v40[0] : f32 from vector<2xf32>
      %v42 = vector.extract %v40[1] : f32 from vector<2xf32>
      %v43 = arith.addf %v42, %v41 : f32
      %v44 = arith.addf %v3, %v43 : f32
      memref.store %v44, %p1[%v32] : memref<4xf32>
      memref.store %v3, %p1[%v45] : memref<4xf32>
      %v47 = vector.load %p0[%v46] : memref<16xf32>, vector<4xf32>
      %v48 = arith.cmpf olt, %v47, %v6 : vector<4xf32>
      %v49 = vector.maskedload %p0[%v46], %v48, %v8 : memref<16xf32>, vector<4xi1>, vector<4xf32> into vector<4xf32>
      %v50 = arith.select %v48, %v49, %v10 : vector<4xi1>, vector<4xf32>
      %v51 = vector.extract_strided_slice %v50 {offsets = [0], sizes = [2], strides = [1]} : vector<4xf32> to vector<2xf32>
      %v52 = vector.extract_strided_slice %v50 {offsets = [2], sizes = [2], strides = [1]} : vector<4xf32> to vector<2xf32>
      %v53 = arith.addf %v52, %v51 : vector<2xf32>
      %v54 = vector.extract %v53[0] : f32 from vector<2xf32>
      %v55 = vector.extract %v53[1] : f32 from vector<2xf32>
      %v56 = arith.addf %v55, %v54 : f32
      %v57 = arith.addf %v3, %v56 : f32
      memref.store %v57, %p1[%v45] : memref<4xf32>
    }
    return
  }
}
