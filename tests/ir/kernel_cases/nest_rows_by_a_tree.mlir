// The sums of four rows of four: a tree adds the lanes of all rows together.
// MACHINES neon
def k(x: f32[4, 4], y: out(f32[4])):
    for r in unroll(4):
        y[r] = f32(0.0)
        for l in vector(4, lanes=4):
            s0: y[r] = addf(y[r], x[r, l])

// LEVEL 5: neon
module {
  func.func @k(%p0: memref<16xf32>, %p1: memref<4xf32> {llvm.noalias}, %scratch: memref<1xi8> {llvm.noalias}, %tid: index, %nt: index) {
    %v1 = arith.constant 0 : index
    %v4 = arith.constant 4 : index
    %v6 = arith.constant 8 : index
    %v8 = arith.constant 12 : index
    %v2 = arith.cmpi eq, %tid, %v1 : index
    scf.if %v2 {
      %v3 = vector.load %p0[%v1] : memref<16xf32>, vector<4xf32>
      %v5 = vector.load %p0[%v4] : memref<16xf32>, vector<4xf32>
      %v7 = vector.load %p0[%v6] : memref<16xf32>, vector<4xf32>
      %v9 = vector.load %p0[%v8] : memref<16xf32>, vector<4xf32>
      %v10 = vector.shuffle %v3, %v7 [0, 1, 6, 7] : vector<4xf32>, vector<4xf32>
      %v11 = vector.shuffle %v3, %v7 [2, 3, 4, 5] : vector<4xf32>, vector<4xf32>
      %v12 = arith.addf %v11, %v10 : vector<4xf32>
      %v13 = vector.shuffle %v5, %v9 [0, 1, 6, 7] : vector<4xf32>, vector<4xf32>
      %v14 = vector.shuffle %v5, %v9 [2, 3, 4, 5] : vector<4xf32>, vector<4xf32>
      %v15 = arith.addf %v14, %v13 : vector<4xf32>
      %v16 = vector.shuffle %v12, %v15 [0, 5, 2, 7] : vector<4xf32>, vector<4xf32>
      %v17 = vector.shuffle %v12, %v15 [1, 4, 3, 6] : vector<4xf32>, vector<4xf32>
      %v18 = arith.addf %v17, %v16 : vector<4xf32>
      vector.store %v18, %p1[%v1] : memref<4xf32>, vector<4xf32>
    }
    return
  }
}
