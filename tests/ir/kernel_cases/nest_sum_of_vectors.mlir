// A sum of 64 numbers: vectors are added to each other before their lanes are.
// MACHINES zen4
def k(x: f32[64], y: out(f32[1])):
    y[0] = f32(0.0)
    for o in unroll(4):
        for l in vector(16, lanes=16):
            s0: y[0] = addf(y[0], x[o * 16 + l])

// LEVEL 5: zen4
module {
  func.func @k(%p0: memref<64xf32>, %p1: memref<1xf32> {llvm.noalias}, %scratch: memref<1xi8> {llvm.noalias}, %tid: index, %nt: index) {
    %v1 = arith.constant 0 : index
    %v3 = arith.constant 0.0 : f32
    %v5 = arith.constant 16 : index
    %v8 = arith.constant 32 : index
    %v11 = arith.constant 48 : index
    %v2 = arith.cmpi eq, %tid, %v1 : index
    scf.if %v2 {
      memref.store %v3, %p1[%v1] : memref<1xf32>
    }
    scf.if %v2 {
      %v4 = vector.load %p0[%v1] : memref<64xf32>, vector<16xf32>
      %v6 = vector.load %p0[%v5] : memref<64xf32>, vector<16xf32>
      %v7 = arith.addf %v4, %v6 : vector<16xf32>
      %v9 = vector.load %p0[%v8] : memref<64xf32>, vector<16xf32>
      %v10 = arith.addf %v7, %v9 : vector<16xf32>
      %v12 = vector.load %p0[%v11] : memref<64xf32>, vector<16xf32>
      %v13 = arith.addf %v10, %v12 : vector<16xf32>
      %v14 = memref.load %p1[%v1] : memref<1xf32>
      %v15 = vector.extract_strided_slice %v13 {offsets = [0], sizes = [8], strides = [1]} : vector<16xf32> to vector<8xf32>
      %v16 = vector.extract_strided_slice %v13 {offsets = [8], sizes = [8], strides = [1]} : vector<16xf32> to vector<8xf32>
      %v17 = arith.addf %v16, %v15 : vector<8xf32>
      %v18 = vector.extract_strided_slice %v17 {offsets = [0], sizes = [4], strides = [1]} : vector<8xf32> to vector<4xf32>
      %v19 = vector.extract_strided_slice %v17 {offsets = [4], sizes = [4], strides = [1]} : vector<8xf32> to vector<4xf32>
      %v20 = arith.addf %v19, %v18 : vector<4xf32>
      %v21 = vector.extract_strided_slice %v20 {offsets = [0], sizes = [2], strides = [1]} : vector<4xf32> to vector<2xf32>
      %v22 = vector.extract_strided_slice %v20 {offsets = [2], sizes = [2], strides = [1]} : vector<4xf32> to vector<2xf32>
      %v23 = arith.addf %v22, %v21 : vector<2xf32>
      %v24 = vector.extract %v23[0] : f32 from vector<2xf32>
      %v25 = vector.extract %v23[1] : f32 from vector<2xf32>
      %v26 = arith.addf %v25, %v24 : f32
      %v27 = arith.addf %v14, %v26 : f32
      memref.store %v27, %p1[%v1] : memref<1xf32>
    }
    return
  }
}
