// Lanes that two rows give in turns: two loads and a shuffle.
// MACHINES zen4
def k(x: f32[100], y: out(f32[16])):
    for i in vector(16, lanes=16):
        s0: y[i] = x[i // 2 + i % 2 * 50]

// LEVEL 5: zen4
module {
  func.func @k(%p0: memref<100xf32>, %p1: memref<16xf32> {llvm.noalias}, %scratch: memref<1xi8> {llvm.noalias}, %tid: index, %nt: index) {
    %v1 = arith.constant 0 : index
    %v3 = vector.constant_mask [8] : vector<16xi1>
    %v4 = arith.constant dense<0.0> : vector<16xf32>
    %v6 = arith.constant 50 : index
    %v2 = arith.cmpi eq, %tid, %v1 : index
    scf.if %v2 {
      %v5 = vector.maskedload %p0[%v1], %v3, %v4 : memref<100xf32>, vector<16xi1>, vector<16xf32> into vector<16xf32>
      %v7 = vector.maskedload %p0[%v6], %v3, %v4 : memref<100xf32>, vector<16xi1>, vector<16xf32> into vector<16xf32>
      %v8 = vector.shuffle %v5, %v7 [0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23] : vector<16xf32>, vector<16xf32>
      vector.store %v8, %p1[%v1] : memref<16xf32>, vector<16xf32>
    }
    return
  }
}
