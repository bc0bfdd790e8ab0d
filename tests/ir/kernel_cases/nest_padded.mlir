// Rows of 21 in a temporary that is padded to whole vectors: masks stay where operand and result are accessed.
// MACHINES zen4
def k(x: f32[7, 21], y: out(f32[7, 21])):
    t = local(f32[7, 32])
    for i in serial(7):
        for j_i in vector(16, lanes=16):
            s0: t[i, j_i] = mulf(x[i, j_i], x[i, j_i])
        for j_i in vector(5, lanes=16):
            s0: t[i, j_i + 16] = mulf(x[i, j_i + 16], x[i, j_i + 16])
    r = local(f32[7])
    for m in serial(7):
        s1.init: r[m] = f32(0.0)
        for n in serial(21):
            s1: r[m] = addf(r[m], t[m, n])
    for p in serial(7):
        for q_i in vector(16, lanes=16):
            s2: y[p, q_i] = divf(t[p, q_i], r[p])
        for q_i in vector(5, lanes=16):
            s2: y[p, q_i + 16] = divf(t[p, q_i + 16], r[p])

// LEVEL 5: zen4
module {
  func.func @k(%p0: memref<147xf32>, %p1: memref<147xf32> {llvm.noalias}, %scratch: memref<960xi8> {llvm.noalias}, %tid: index, %nt: index) attributes {passthrough = ["tw-accumulates-in-memory"]} {
    %v1 = arith.constant 0 : index
    %v4 = arith.constant 7 : index
    %v6 = arith.constant 1 : index
    %v7 = arith.constant 21 : index
    %v11 = arith.constant 32 : index
    %v13 = vector.constant_mask [5] : vector<16xi1>
    %v14 = arith.constant 16 : index
    %v16 = arith.constant dense<0.0> : vector<16xf32>
    %v20 = arith.constant 896 : index
    %v23 = arith.constant 0.0 : f32
    %v2 = arith.cmpi eq, %tid, %v1 : index
    scf.if %v2 {
      %v3 = memref.view %scratch[%v1][] : memref<960xi8> to memref<224xf32>
      scf.for %v5 = %v1 to %v4 step %v6 {
        %v8 = arith.muli %v5, %v7 : index
        %v9 = vector.load %p0[%v8] : memref<147xf32>, vector<16xf32>
        %v10 = arith.mulf %v9, %v9 : vector<16xf32>
        %v12 = arith.muli %v5, %v11 : index
        vector.store %v10, %v3[%v12] : memref<224xf32>, vector<16xf32>
        %v15 = arith.addi %v8, %v14 : index
        %v17 = vector.maskedload %p0[%v15], %v13, %v16 : memref<147xf32>, vector<16xi1>, vector<16xf32> into vector<16xf32>
        %v18 = arith.mulf %v17, %v17 : vector<16xf32>
        %v19 = arith.addi %v12, %v14 : index
        vector.store %v18, %v3[%v19] : memref<224xf32>, vector<16xf32>
      }
      %v21 = memref.view %scratch[%v20][] : memref<960xi8> to memref<7xf32>
      scf.for %v22 = %v1 to %v4 step %v6 {
        memref.store %v23, %v21[%v22] : memref<7xf32>
        scf.for %v24 = %v1 to %v7 step %v6 {
          %v25 = memref.load %v21[%v22] : memref<7xf32>
          %v26 = arith.muli %v22, %v11 : index
          %v27 = arith.addi %v26, %v24 : index
          %v28 = memref.load %v3[%v27] : memref<224xf32>
          %v29 = arith.addf %v25, %v28 : f32
          memref.store %v29, %v21[%v22] : memref<7xf32>
        }
      }
      scf.for %v30 = %v1 to %v4 step %v6 {
        %v31 = arith.muli %v30, %v11 : index
        %v32 = vector.load %v3[%v31] : memref<224xf32>, vector<16xf32>
        %v33 = memref.load %v21[%v30] : memref<7xf32>
        %v34 = vector.broadcast %v33 : f32 to vector<16xf32>
        %v35 = arith.divf %v32, %v34 : vector<16xf32>
        %v36 = arith.muli %v30, %v7 : index
        vector.store %v35, %p1[%v36] : memref<147xf32>, vector<16xf32>
        %v37 = arith.addi %v31, %v14 : index
        %v38 = vector.load %v3[%v37] : memref<224xf32>, vector<16xf32>
        %v39 = arith.divf %v38, %v34 : vector<16xf32>
        %v40 = arith.addi %v36, %v14 : index
        vector.maskedstore %p1[%v40], %v13, %v39 : memref<147xf32>, vector<16xi1>, vector<16xf32>
      }
    }
    return
  }
}
