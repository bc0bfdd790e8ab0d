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
    %v20 = arith.constant 1 : index
    %v21 = arith.constant 4 : index
    %v34 = arith.constant 2 : index
    %v35 = arith.constant 8 : index
    %v48 = arith.constant 3 : index
    %v49 = arith.constant 12 : index
    %v2 = arith.cmpi eq, %tid, %v1 : index
    scf.if %v2 {
      memref.store %v3, %p1[%v1] : memref<4xf32>
      %v4 = vector.load %p0[%v1] : memref<16xf32>, vector<4xf32>
      %v6 = vector.broadcast %v5 : f32 to vector<4xf32>
      %v7 = arith.cmpf olt, %v4, %v6 : vector<4xf32>
      %v9 = vector.maskedload %p0[%v1], %v7, %v8 : memref<16xf32>, vector<4xi1>, vector<4xf32> into vector<4xf32>
      %v10 = vector.broadcast %v3 : f32 to vector<4xf32>
      %v11 = arith.select %v7, %v9, %v10 : vector<4xi1>, vector<4xf32>
      %v12 = memref.load %p1[%v1] : memref<4xf32>
      %v13 = vector.extract_strided_slice %v11 {offsets = [0], sizes = [2], strides = [1]} : vector<4xf32> to vector<2xf32>
      %v14 = vector.extract_strided_slice %v11 {offsets = [2], sizes = [2], strides = [1]} : vector<4xf32> to vector<2xf32>
      %v15 = arith.addf %v14, %v13 : vector<2xf32>
      %v16 = vector.extract %v15[0] : f32 from vector<2xf32>
      %v17 = vector.extract %v15[1] : f32 from vector<2xf32>
      %v18 = arith.addf %v17, %v16 : f32
      %v19 = arith.addf %v12, %v18 : f32
      memref.store %v19, %p1[%v1] : memref<4xf32>
      memref.store %v3, %p1[%v20] : memref<4xf32>
      %v22 = vector.load %p0[%v21] : memref<16xf32>, vector<4xf32>
      %v23 = arith.cmpf olt, %v22, %v6 : vector<4xf32>
      %v24 = vector.maskedload %p0[%v21], %v23, %v8 : memref<16xf32>, vector<4xi1>, vector<4xf32> into vector<4xf32>
      %v25 = arith.select %v23, %v24, %v10 : vector<4xi1>, vector<4xf32>
      %v26 = memref.load %p1[%v20] : memref<4xf32>
      %v27 = vector.extract_strided_slice %v25 {offsets = [0], sizes = [2], strides = [1]} : vector<4xf32> to vector<2xf32>
      %v28 = vector.extract_strided_slice %v25 {offsets = [2], sizes = [2], strides = [1]} : vector<4xf32> to vector<2xf32>
      %v29 = arith.addf %v28, %v27 : vector<2xf32>
      %v30 = vector.extract %v29[0] : f32 from vector<2xf32>
      %v31 = vector.extract %v29[1] : f32 from vector<2xf32>
      %v32 = arith.addf %v31, %v30 : f32
      %v33 = arith.addf %v26, %v32 : f32
      memref.store %v33, %p1[%v20] : memref<4xf32>
      memref.store %v3, %p1[%v34] : memref<4xf32>
      %v36 = vector.load %p0[%v35] : memref<16xf32>, vector<4xf32>
      %v37 = arith.cmpf olt, %v36, %v6 : vector<4xf32>
      %v38 = vector.maskedload %p0[%v35], %v37, %v8 : memref<16xf32>, vector<4xi1>, vector<4xf32> into vector<4xf32>
      %v39 = arith.select %v37, %v38, %v10 : vector<4xi1>, vector<4xf32>
      %v40 = memref.load %p1[%v34] : memref<4xf32>
      %v41 = vector.extract_strided_slice %v39 {offsets = [0], sizes = [2], strides = [1]} : vector<4xf32> to vector<2xf32>
      %v42 = vector.extract_strided_slice %v39 {offsets = [2], sizes = [2], strides = [1]} : vector<4xf32> to vector<2xf32>
      %v43 = arith.addf %v42, %v41 : vector<2xf32>
      %v44 = vector.extract %v43[0] : f32 from vector<2xf32>
      %v45 = vector.extract %v43[1] : f32 from vector<2xf32>
      %v46 = arith.addf %v45, %v44 : f32
      %v47 = arith.addf %v40, %v46 : f32
      memref.store %v47, %p1[%v34] : memref<4xf32>
      memref.store %v3, %p1[%v48] : memref<4xf32>
      %v50 = vector.load %p0[%v49] : memref<16xf32>, vector<4xf32>
      %v51 = arith.cmpf olt, %v50, %v6 : vector<4xf32>
      %v52 = vector.maskedload %p0[%v49], %v51, %v8 : memref<16xf32>, vector<4xi1>, vector<4xf32> into vector<4xf32>
      %v53 = arith.select %v51, %v52, %v10 : vector<4xi1>, vector<4xf32>
      %v54 = memref.load %p1[%v48] : memref<4xf32>
      %v55 = vector.extract_strided_slice %v53 {offsets = [0], sizes = [2], strides = [1]} : vector<4xf32> to vector<2xf32>
      %v56 = vector.extract_strided_slice %v53 {offsets = [2], sizes = [2], strides = [1]} : vector<4xf32> to vector<2xf32>
      %v57 = arith.addf %v56, %v55 : vector<2xf32>
      %v58 = vector.extract %v57[0] : f32 from vector<2xf32>
      %v59 = vector.extract %v57[1] : f32 from vector<2xf32>
      %v60 = arith.addf %v59, %v58 : f32
      %v61 = arith.addf %v54, %v60 : f32
      memref.store %v61, %p1[%v48] : memref<4xf32>
    }
    return
  }
}
