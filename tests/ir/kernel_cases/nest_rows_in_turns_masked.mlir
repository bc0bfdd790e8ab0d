// Eleven lanes that two rows give in turns: as for sixteen, with masks.
// MACHINES zen4
def k(x: f32[100], y: out(f32[16])):
    for i in vector(11, lanes=16):
        s0: y[i] = x[i // 2 + i % 2 * 50]

// LEVEL 5: zen4
module {
  func.func @k(%p0: memref<100xf32>, %p1: memref<16xf32> {llvm.noalias}, %scratch: memref<1xi8> {llvm.noalias}, %tid: index, %nt: index) {
    %v1 = arith.constant 0 : index
    %v3 = vector.constant_mask [11] : vector<16xi1>
    %v4 = vector.constant_mask [6] : vector<16xi1>
    %v5 = arith.constant dense<0.0> : vector<16xf32>
    %v7 = arith.constant 50 : index
    %v8 = vector.constant_mask [5] : vector<16xi1>
    %v2 = arith.cmpi eq, %tid, %v1 : index
    scf.if %v2 {
      %v6 = vector.maskedload %p0[%v1], %v4, %v5 : memref<100xf32>, vector<16xi1>, vector<16xf32> into vector<16xf32>
      %v9 = vector.maskedload %p0[%v7], %v8, %v5 : memref<100xf32>, vector<16xi1>, vector<16xf32> into vector<16xf32>
      %v10 = vector.shuffle %v6, %v9 [0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 0, 0, 0, 0, 0] : vector<16xf32>, vector<16xf32>
      vector.maskedstore %p1[%v1], %v3, %v10 : memref<16xf32>, vector<16xi1>, vector<16xf32>
    }
    return
  }
}
