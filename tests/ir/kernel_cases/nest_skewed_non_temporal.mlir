// Rows whose last stage is stored past the caches: its stages stay loops of their own, no row is asked for.
// MACHINES zen4
def k(x: f32[7, 21], y: out(f32[7, 21])):
    t = local(f32[7, 21])
    for i in serial(7, notes={'lag': 0}):
        for j in serial(21):
            s0: t[i, j] = mulf(x[i, j], x[i, j])
    r = local(f32[7])
    for m in serial(7, notes={'lag': 1}):
        s1.init: r[m] = f32(0.0)
        for n in serial(21):
            s1: r[m] = addf(r[m], t[m, n])
    for p in serial(7, notes={'lag': 3, 'uncached': True}):
        for q in serial(21):
            s2: y[p, q] = divf(t[p, q], r[p])

// LEVEL 5: zen4
module {
  func.func @k(%p0: memref<147xf32>, %p1: memref<147xf32> {llvm.noalias}, %scratch: memref<704xi8> {llvm.noalias}, %tid: index, %nt: index) attributes {passthrough = ["tw-accumulates-in-memory"]} {
    %v1 = arith.constant 0 : index
    %v4 = arith.constant 7 : index
    %v6 = arith.constant 1 : index
    %v7 = arith.constant 21 : index
    %v13 = arith.constant 640 : index
    %v16 = arith.constant 0.0 : f32
    %v2 = arith.cmpi eq, %tid, %v1 : index
    scf.if %v2 {
      %v3 = memref.view %scratch[%v1][] : memref<704xi8> to memref<147xf32>
      scf.for %v5 = %v1 to %v4 step %v6 {
        scf.for %v8 = %v1 to %v7 step %v6 {
          %v9 = arith.muli %v5, %v7 : index
          %v10 = arith.addi %v9, %v8 : index
          %v11 = memref.load %p0[%v10] : memref<147xf32>
          %v12 = arith.mulf %v11, %v11 : f32
          memref.store %v12, %v3[%v10] : memref<147xf32>
        }
      }
      %v14 = memref.view %scratch[%v13][] : memref<704xi8> to memref<7xf32>
      scf.for %v15 = %v1 to %v4 step %v6 {
        memref.store %v16, %v14[%v15] : memref<7xf32>
        scf.for %v17 = %v1 to %v7 step %v6 {
          %v18 = memref.load %v14[%v15] : memref<7xf32>
          %v19 = arith.muli %v15, %v7 : index
          %v20 = arith.addi %v19, %v17 : index
          %v21 = memref.load %v3[%v20] : memref<147xf32>
          %v22 = arith.addf %v18, %v21 : f32
          memref.store %v22, %v14[%v15] : memref<7xf32>
        }
      }
      scf.for %v23 = %v1 to %v4 step %v6 {
        %v28 = memref.load %v14[%v23] : memref<7xf32>
        scf.for %v24 = %v1 to %v7 step %v6 {
          %v25 = arith.muli %v23, %v7 : index
          %v26 = arith.addi %v25, %v24 : index
          %v27 = memref.load %v3[%v26] : memref<147xf32>
          %v29 = arith.divf %v27, %v28 : f32
          memref.store %v29, %p1[%v26] : memref<147xf32>
        }
      }
    }
    return
  }
}
