// Three stages of rows in one loop, each so many iterations behind the first: every stage asks whether its row is there.
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
    for p in serial(7, notes={'lag': 3}):
        for q in serial(21):
            s2: y[p, q] = divf(t[p, q], r[p])

// LEVEL 5: zen4
module {
  func.func @k(%p0: memref<147xf32>, %p1: memref<147xf32> {llvm.noalias}, %scratch: memref<704xi8> {llvm.noalias}, %tid: index, %nt: index) attributes {passthrough = ["tw-accumulates-in-memory"]} {
    %v1 = arith.constant 0 : index
    %v4 = arith.constant 640 : index
    %v6 = arith.constant 7 : index
    %v8 = arith.constant 3 : index
    %v10 = arith.constant 1 : index
    %v13 = arith.constant 21 : index
    %v21 = arith.constant 0.0 : f32
    %v2 = arith.cmpi eq, %tid, %v1 : index
    scf.if %v2 {
      %v3 = memref.view %scratch[%v1][] : memref<704xi8> to memref<147xf32>
      %v5 = memref.view %scratch[%v4][] : memref<704xi8> to memref<7xf32>
      %v9 = arith.addi %v6, %v8 : index
      scf.for %v7 = %v1 to %v9 step %v10 {
        %v11 = arith.subi %v7, %v1 : index
        %v12 = arith.cmpi ult, %v11, %v6 : index
        scf.if %v12 {
          scf.for %v14 = %v1 to %v13 step %v10 {
            %v15 = arith.muli %v11, %v13 : index
            %v16 = arith.addi %v15, %v14 : index
            %v17 = memref.load %p0[%v16] : memref<147xf32>
            %v18 = arith.mulf %v17, %v17 : f32
            memref.store %v18, %v3[%v16] : memref<147xf32>
          }
        }
        %v19 = arith.subi %v7, %v10 : index
        %v20 = arith.cmpi ult, %v19, %v6 : index
        scf.if %v20 {
          memref.store %v21, %v5[%v19] : memref<7xf32>
          scf.for %v22 = %v1 to %v13 step %v10 {
            %v23 = memref.load %v5[%v19] : memref<7xf32>
            %v24 = arith.muli %v19, %v13 : index
            %v25 = arith.addi %v24, %v22 : index
            %v26 = memref.load %v3[%v25] : memref<147xf32>
            %v27 = arith.addf %v23, %v26 : f32
            memref.store %v27, %v5[%v19] : memref<7xf32>
          }
        }
        %v28 = arith.subi %v7, %v8 : index
        %v29 = arith.cmpi ult, %v28, %v6 : index
        scf.if %v29 {
          %v34 = memref.load %v5[%v28] : memref<7xf32>
          scf.for %v30 = %v1 to %v13 step %v10 {
            %v31 = arith.muli %v28, %v13 : index
            %v32 = arith.addi %v31, %v30 : index
            %v33 = memref.load %v3[%v32] : memref<147xf32>
            %v35 = arith.divf %v33, %v34 : f32
            memref.store %v35, %p1[%v32] : memref<147xf32>
          }
        }
      }
    }
    return
  }
}
