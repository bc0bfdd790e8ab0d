// Rows of 21 in a temporary without padding: its last vectors have masks too, see nest_padded.
// MACHINES zen4
def k(x: f32[7, 21], y: out(f32[7, 21])):
    t = local(f32[7, 21])
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
  func.func @k(%p0: memref<147xf32>, %p1: memref<147xf32> {llvm.noalias}, %scratch: memref<704xi8> {llvm.noalias}, %tid: index, %nt: index) attributes {passthrough = ["tw-accumulates-in-memory"]} {
    %v1 = arith.constant 0 : index
    %v4 = arith.constant 7 : index
    %v6 = arith.constant 1 : index
    %v7 = arith.constant 21 : index
    %v11 = vector.constant_mask [5] : vector<16xi1>
    %v12 = arith.constant 16 : index
    %v14 = arith.constant dense<0.0> : vector<16xf32>
    %v17 = arith.constant 640 : index
    %v20 = arith.constant 0.0 : f32
    %v2 = arith.cmpi eq, %tid, %v1 : index
    scf.if %v2 {
      %v3 = memref.view %scratch[%v1][] : memref<704xi8> to memref<147xf32>
      scf.for %v5 = %v1 to %v4 step %v6 {
        %v8 = arith.muli %v5, %v7 : index
        %v9 = vector.load %p0[%v8] : memref<147xf32>, vector<16xf32>
        %v10 = arith.mulf %v9, %v9 : vector<16xf32>
        vector.store %v10, %v3[%v8] : memref<147xf32>, vector<16xf32>
        %v13 = arith.addi %v8, %v12 : index
        %v15 = vector.maskedload %p0[%v13], %v11, %v14 : memref<147xf32>, vector<16xi1>, vector<16xf32> into vector<16xf32>
        %v16 = arith.mulf %v15, %v15 : vector<16xf32>
        vector.maskedstore %v3[%v13], %v11, %v16 : memref<147xf32>, vector<16xi1>, vector<16xf32>
      }
      %v18 = memref.view %scratch[%v17][] : memref<704xi8> to memref<7xf32>
      scf.for %v19 = %v1 to %v4 step %v6 {
        memref.store %v20, %v18[%v19] : memref<7xf32>
        scf.for %v21 = %v1 to %v7 step %v6 {
          %v22 = memref.load %v18[%v19] : memref<7xf32>
          %v23 = arith.muli %v19, %v7 : index
          %v24 = arith.addi %v23, %v21 : index
          %v25 = memref.load %v3[%v24] : memref<147xf32>
          %v26 = arith.addf %v22, %v25 : f32
          memref.store %v26, %v18[%v19] : memref<7xf32>
        }
      }
      scf.for %v27 = %v1 to %v4 step %v6 {
        %v28 = arith.muli %v27, %v7 : index
        %v29 = vector.load %v3[%v28] : memref<147xf32>, vector<16xf32>
        %v30 = memref.load %v18[%v27] : memref<7xf32>
        %v31 = vector.broadcast %v30 : f32 to vector<16xf32>
        %v32 = arith.divf %v29, %v31 : vector<16xf32>
        vector.store %v32, %p1[%v28] : memref<147xf32>, vector<16xf32>
        %v33 = arith.addi %v28, %v12 : index
        %v34 = vector.maskedload %v3[%v33], %v11, %v14 : memref<147xf32>, vector<16xi1>, vector<16xf32> into vector<16xf32>
        %v35 = arith.divf %v34, %v31 : vector<16xf32>
        vector.maskedstore %p1[%v33], %v11, %v35 : memref<147xf32>, vector<16xi1>, vector<16xf32>
      }
    }
    return
  }
}
