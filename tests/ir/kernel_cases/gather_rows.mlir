// Rows picked by indices that may be negative.
// CODE avx2
func.func @main(%x: tensor<10x24xf32>, %i: tensor<5xi64>) -> tensor<5x24xf32> {
  %0 = "tw.gather"(%x, %i) {axis = 0} : (tensor<10x24xf32>, tensor<5xi64>) -> tensor<5x24xf32>
  return %0 : tensor<5x24xf32>
}

// LEVEL 3: zen4 avx2 neon
func.func private @gather_07cffb645d(%arg0: tensor<5xi64>, %arg1: tensor<10x24xf32>) -> tensor<5x24xf32> {
  %0 = tensor.empty() : tensor<5x24xf32>
  %1 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%arg0 : tensor<5xi64>) outs(%0 : tensor<5x24xf32>) attrs =  {tw.op = "gather"} {
  ^bb0(%in: i64, %out: f32):
    %2 = linalg.index 1 : index
    %3 = arith.index_cast %in : i64 to index
    %c0 = arith.constant 0 : index
    %4 = arith.cmpi slt, %3, %c0 : index
    %c10 = arith.constant 10 : index
    %5 = arith.addi %3, %c10 : index
    %6 = arith.select %4, %5, %3 : index
    %c0_0 = arith.constant 0 : index
    %7 = arith.maxsi %6, %c0_0 : index
    %c9 = arith.constant 9 : index
    %8 = arith.minsi %7, %c9 : index
    %extracted = tensor.extract %arg1[%8, %2] : tensor<10x24xf32>
    linalg.yield %extracted : f32
  } -> tensor<5x24xf32>
  return %1 : tensor<5x24xf32>
}

// LEVEL 4: zen4
# rule: elementwise
# loops: i0, j0
# blocks: s0
# buffers: p0, p1, p2
j0_o, j0_i = s.split('j0', 16)
s.vectorize('j0_i')
i0_j0_o = s.fuse('i0', 'j0_o')
s.parallel('i0_j0_o')

def gather_07cffb645d(p0: i64[5], p1: f32[10, 24], p2: out(f32[5, 24])):
    for i0_j0_o in thread(10):
        if i0_j0_o % 2 < 1:
            for j0_i in vector(16, lanes=16):
                s0: p2[i0_j0_o // 2, i0_j0_o % 2 * 16 + j0_i] = p1[min(max(select(index_cast[index](p0[i0_j0_o // 2]) < 0, index_cast[index](p0[i0_j0_o // 2]) + 10, index_cast[index](p0[i0_j0_o // 2])), 0), 9), i0_j0_o % 2 * 16 + j0_i]
        else:
            for j0_i in vector(8, lanes=16):
                s0: p2[i0_j0_o // 2, j0_i + 16] = p1[min(max(select(index_cast[index](p0[i0_j0_o // 2]) < 0, index_cast[index](p0[i0_j0_o // 2]) + 10, index_cast[index](p0[i0_j0_o // 2])), 0), 9), j0_i + 16]

// LEVEL 4: avx2
# rule: elementwise
# loops: i0, j0
# blocks: s0
# buffers: p0, p1, p2
j0_o, j0_i = s.split('j0', 8)
s.vectorize('j0_i')
i0_j0_o = s.fuse('i0', 'j0_o')
s.parallel('i0_j0_o')

def gather_07cffb645d(p0: i64[5], p1: f32[10, 24], p2: out(f32[5, 24])):
    for i0_j0_o in thread(15):
        for j0_i in vector(8, lanes=8):
            s0: p2[i0_j0_o // 3, i0_j0_o % 3 * 8 + j0_i] = p1[min(max(select(index_cast[index](p0[i0_j0_o // 3]) < 0, index_cast[index](p0[i0_j0_o // 3]) + 10, index_cast[index](p0[i0_j0_o // 3])), 0), 9), i0_j0_o % 3 * 8 + j0_i]

// LEVEL 4: neon
# rule: elementwise
# loops: i0, j0
# blocks: s0
# buffers: p0, p1, p2
j0_o, j0_i = s.split('j0', 4)
s.vectorize('j0_i')
i0_j0_o = s.fuse('i0', 'j0_o')
s.parallel('i0_j0_o')

def gather_07cffb645d(p0: i64[5], p1: f32[10, 24], p2: out(f32[5, 24])):
    for i0_j0_o in thread(30):
        for j0_i in vector(4, lanes=4):
            s0: p2[i0_j0_o // 6, i0_j0_o % 6 * 4 + j0_i] = p1[min(max(select(index_cast[index](p0[i0_j0_o // 6]) < 0, index_cast[index](p0[i0_j0_o // 6]) + 10, index_cast[index](p0[i0_j0_o // 6])), 0), 9), i0_j0_o % 6 * 4 + j0_i]

// LEVEL 5: avx2
module {
  func.func @gather_07cffb645d(%p0: memref<5xi64>, %p1: memref<240xf32>, %p2: memref<120xf32> {llvm.noalias}, %scratch: memref<1xi8> {llvm.noalias}, %tid: index, %nt: index) {
    %v1 = arith.constant 15 : index
    %v2 = arith.constant 1 : index
    %v9 = arith.constant 3 : index
    %v11 = arith.constant 8 : index
    %v16 = arith.constant 0 : index
    %v18 = arith.constant 10 : index
    %v22 = arith.constant 9 : index
    %v24 = arith.constant 24 : index
    %v3 = arith.muli %tid, %v1 : index
    %v4 = arith.divui %v3, %nt : index
    %v5 = arith.addi %tid, %v2 : index
    %v6 = arith.muli %v5, %v1 : index
    %v7 = arith.divui %v6, %nt : index
    scf.for %v8 = %v4 to %v7 step %v2 {
      %v10 = arith.remui %v8, %v9 : index
      %v12 = arith.muli %v10, %v11 : index
      %v13 = arith.divui %v8, %v9 : index
      %v14 = memref.load %p0[%v13] : memref<5xi64>
      %v15 = arith.index_cast %v14 : i64 to index
      %v17 = arith.cmpi slt, %v15, %v16 : index
      %v19 = arith.addi %v15, %v18 : index
      %v20 = arith.select %v17, %v19, %v15 : i1, index
      %v21 = arith.maxsi %v20, %v16 : index
      %v23 = arith.minsi %v21, %v22 : index
      %v25 = arith.muli %v23, %v24 : index
      %v26 = arith.addi %v12, %v25 : index
      %v27 = vector.load %p1[%v26] : memref<240xf32>, vector<8xf32>
      %v28 = arith.muli %v8, %v11 : index
      vector.store %v27, %p2[%v28] : memref<120xf32>, vector<8xf32>
    }
    return
  }
}
