// The sums of four rows of two: two rows are in a vector, one addition is enough.
// MACHINES neon
def k(x: f32[4, 2], y: out(f32[4])):
    for r in unroll(4):
        y[r] = f32(0.0)
        for l in vector(2, lanes=2):
            s0: y[r] = addf(y[r], x[r, l])

// LEVEL 5: neon
module {
  func.func @k(%p0: memref<8xf32>, %p1: memref<4xf32> {llvm.noalias}, %scratch: memref<1xi8> {llvm.noalias}, %tid: index, %nt: index) {
    %v1 = arith.constant 0 : index
    %v5 = arith.constant 4 : index
    %v2 = arith.cmpi eq, %tid, %v1 : index
    scf.if %v2 {
      %v3 = vector.load %p0[%v1] : memref<8xf32>, vector<4xf32>
      %v4 = vector.shuffle %v3, %v3 [0, 1, 2, 3] : vector<4xf32>, vector<4xf32>
      %v6 = vector.load %p0[%v5] : memref<8xf32>, vector<4xf32>
      %v7 = vector.shuffle %v6, %v6 [0, 1, 2, 3] : vector<4xf32>, vector<4xf32>
      %v8 = vector.shuffle %v4, %v7 [0, 5, 2, 7] : vector<4xf32>, vector<4xf32>
      %v9 = vector.shuffle %v4, %v7 [1, 4, 3, 6] : vector<4xf32>, vector<4xf32>
      %v10 = arith.addf %v9, %v8 : vector<4xf32>
      %v11 = vector.shuffle %v10, %v10 [0, 2, 1, 3] : vector<4xf32>, vector<4xf32>
      vector.store %v11, %p1[%v1] : memref<4xf32>, vector<4xf32>
    }
    return
  }
}
