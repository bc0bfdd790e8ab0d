// Loads before the loops that do not change them: x before both, b[i] before the inner one; not t, which the loop
// writes. What is stored whole is not loaded, and stays known when other elements are written; last[0] may be any.
// MACHINES zen4
def k(x: f32[16], b: f32[4], y: out(f32[4, 3, 16]), last: out(f32[3])):
    t = local(f32[32])
    for i in serial(4):
        for n in serial(3):
            for j in vector(16, lanes=16):
                s0: t[j] = addf(x[j], b[i])
            for k in vector(16, lanes=16):
                s1: t[k + 16] = mulf(t[k], x[k])
            for m in vector(16, lanes=16):
                s2: y[i, n, m] = subf(t[m], t[m + 16])
            s3: last[n] = addf(last[0], b[i])

// LEVEL 5: zen4
module {
  func.func @k(%p0: memref<16xf32>, %p1: memref<4xf32>, %p2: memref<192xf32> {llvm.noalias}, %p3: memref<3xf32> {llvm.noalias}, %scratch: memref<128xi8> {llvm.noalias}, %tid: index, %nt: index) {
    %v1 = arith.constant 0 : index
    %v4 = arith.constant 4 : index
    %v6 = arith.constant 1 : index
    %v7 = arith.constant 3 : index
    %v14 = arith.constant 16 : index
    %v16 = arith.constant 48 : index
    %v2 = arith.cmpi eq, %tid, %v1 : index
    scf.if %v2 {
      %v3 = memref.view %scratch[%v1][] : memref<128xi8> to memref<32xf32>
      %v9 = vector.load %p0[%v1] : memref<16xf32>, vector<16xf32>
      scf.for %v5 = %v1 to %v4 step %v6 {
        %v10 = memref.load %p1[%v5] : memref<4xf32>
        scf.for %v8 = %v1 to %v7 step %v6 {
          %v11 = vector.broadcast %v10 : f32 to vector<16xf32>
          %v12 = arith.addf %v9, %v11 : vector<16xf32>
          vector.store %v12, %v3[%v1] : memref<32xf32>, vector<16xf32>
          %v13 = arith.mulf %v12, %v9 : vector<16xf32>
          vector.store %v13, %v3[%v14] : memref<32xf32>, vector<16xf32>
          %v15 = arith.subf %v12, %v13 : vector<16xf32>
          %v17 = arith.muli %v5, %v16 : index
          %v18 = arith.muli %v8, %v14 : index
          %v19 = arith.addi %v17, %v18 : index
          vector.store %v15, %p2[%v19] : memref<192xf32>, vector<16xf32>
          %v20 = memref.load %p3[%v1] : memref<3xf32>
          %v21 = arith.addf %v20, %v10 : f32
          memref.store %v21, %p3[%v8] : memref<3xf32>
        }
      }
    }
    return
  }
}
