// A transposed matrix: tiles that are shuffled in registers.
// CODE neon
func.func @main(%x: tensor<12x20xf32>) -> tensor<20x12xf32> {
  %0 = "tw.transpose"(%x) {permutation = array<i64: 1, 0>} : (tensor<12x20xf32>) -> tensor<20x12xf32>
  return %0 : tensor<20x12xf32>
}

// LEVEL 3: zen4 avx2 neon
func.func private @transpose_8d60cd21ce(%arg0: tensor<12x20xf32>) -> tensor<20x12xf32> {
  %0 = tensor.empty() : tensor<20x12xf32>
  %1 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d1, d0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%arg0 : tensor<12x20xf32>) outs(%0 : tensor<20x12xf32>) attrs =  {tw.op = "transpose"} {
  ^bb0(%in: f32, %out: f32):
    linalg.yield %in : f32
  } -> tensor<20x12xf32>
  return %1 : tensor<20x12xf32>
}

// LEVEL 4: zen4
# rule: elementwise
# loops: i0, j0
# blocks: s0
# buffers: p0, p1
s.vectorize('j0')
i0_o, i0_i = s.split('i0', 16)
s.unroll('i0_i')
s.reorder('i0_o', 'i0_i')
s.parallel('i0_o')

def transpose_8d60cd21ce(p0: f32[12, 20], p1: out(f32[20, 12])):
    for i0_o in thread(2):
        if i0_o < 1:
            for i0_i in unroll(16):
                for j0 in vector(12, lanes=16):
                    s0: p1[i0_o * 16 + i0_i, j0] = p0[j0, i0_o * 16 + i0_i]
        else:
            for i0_i in unroll(4):
                for j0 in vector(12, lanes=16):
                    s0: p1[i0_i + 16, j0] = p0[j0, i0_i + 16]

// LEVEL 4: avx2
# rule: elementwise
# loops: i0, j0
# blocks: s0
# buffers: p0, p1
j0_o, j0_i = s.split('j0', 8)
s.vectorize('j0_i')
i0_o, i0_i = s.split('i0', 8)
s.unroll('i0_i')
s.reorder('i0_o', 'j0_o', 'i0_i')
i0_o_j0_o = s.fuse('i0_o', 'j0_o')
s.parallel('i0_o_j0_o')

def transpose_8d60cd21ce(p0: f32[12, 20], p1: out(f32[20, 12])):
    for i0_o_j0_o in thread(6):
        if i0_o_j0_o // 2 < 2:
            if i0_o_j0_o % 2 < 1:
                for i0_i in unroll(8):
                    for j0_i in vector(8, lanes=8):
                        s0: p1[i0_o_j0_o // 2 * 8 + i0_i, i0_o_j0_o % 2 * 8 + j0_i] = p0[i0_o_j0_o % 2 * 8 + j0_i, i0_o_j0_o // 2 * 8 + i0_i]
            else:
                for i0_i in unroll(8):
                    for j0_i in vector(4, lanes=8):
                        s0: p1[i0_o_j0_o // 2 * 8 + i0_i, j0_i + 8] = p0[j0_i + 8, i0_o_j0_o // 2 * 8 + i0_i]
        else:
            if i0_o_j0_o % 2 < 1:
                for i0_i in unroll(4):
                    for j0_i in vector(8, lanes=8):
                        s0: p1[i0_i + 16, i0_o_j0_o % 2 * 8 + j0_i] = p0[i0_o_j0_o % 2 * 8 + j0_i, i0_i + 16]
            else:
                for i0_i in unroll(4):
                    for j0_i in vector(4, lanes=8):
                        s0: p1[i0_i + 16, j0_i + 8] = p0[j0_i + 8, i0_i + 16]

// LEVEL 4: neon
# rule: elementwise
# loops: i0, j0
# blocks: s0
# buffers: p0, p1
j0_o, j0_i = s.split('j0', 4)
s.vectorize('j0_i')
i0_o, i0_i = s.split('i0', 4)
s.unroll('i0_i')
s.reorder('i0_o', 'j0_o', 'i0_i')
i0_o_j0_o = s.fuse('i0_o', 'j0_o')
s.parallel('i0_o_j0_o')

def transpose_8d60cd21ce(p0: f32[12, 20], p1: out(f32[20, 12])):
    for i0_o_j0_o in thread(15):
        for i0_i in unroll(4):
            for j0_i in vector(4, lanes=4):
                s0: p1[i0_o_j0_o // 3 * 4 + i0_i, i0_o_j0_o % 3 * 4 + j0_i] = p0[i0_o_j0_o % 3 * 4 + j0_i, i0_o_j0_o // 3 * 4 + i0_i]

// LEVEL 5: neon
module {
  func.func @transpose_8d60cd21ce(%p0: memref<240xf32>, %p1: memref<240xf32> {llvm.noalias}, %scratch: memref<1xi8> {llvm.noalias}, %tid: index, %nt: index) {
    %v1 = arith.constant 15 : index
    %v2 = arith.constant 1 : index
    %v9 = arith.constant 3 : index
    %v11 = arith.constant 80 : index
    %v14 = arith.constant 4 : index
    %v18 = arith.constant 20 : index
    %v21 = arith.constant 40 : index
    %v24 = arith.constant 60 : index
    %v35 = arith.constant 48 : index
    %v39 = arith.constant 12 : index
    %v41 = arith.constant 24 : index
    %v43 = arith.constant 36 : index
    %v3 = arith.muli %tid, %v1 : index
    %v4 = arith.divui %v3, %nt : index
    %v5 = arith.addi %tid, %v2 : index
    %v6 = arith.muli %v5, %v1 : index
    %v7 = arith.divui %v6, %nt : index
    scf.for %v8 = %v4 to %v7 step %v2 {
      %v10 = arith.remui %v8, %v9 : index
      %v12 = arith.muli %v10, %v11 : index
      %v13 = arith.divui %v8, %v9 : index
      %v15 = arith.muli %v13, %v14 : index
      %v16 = arith.addi %v12, %v15 : index
      %v17 = vector.load %p0[%v16] : memref<240xf32>, vector<4xf32>
      %v19 = arith.addi %v16, %v18 : index
      %v20 = vector.load %p0[%v19] : memref<240xf32>, vector<4xf32>
      %v22 = arith.addi %v16, %v21 : index
      %v23 = vector.load %p0[%v22] : memref<240xf32>, vector<4xf32>
      %v25 = arith.addi %v16, %v24 : index
      %v26 = vector.load %p0[%v25] : memref<240xf32>, vector<4xf32>
      %v27 = vector.shuffle %v17, %v20 [0, 4, 2, 6] : vector<4xf32>, vector<4xf32>
      %v28 = vector.shuffle %v17, %v20 [1, 5, 3, 7] : vector<4xf32>, vector<4xf32>
      %v29 = vector.shuffle %v23, %v26 [0, 4, 2, 6] : vector<4xf32>, vector<4xf32>
      %v30 = vector.shuffle %v23, %v26 [1, 5, 3, 7] : vector<4xf32>, vector<4xf32>
      %v31 = vector.shuffle %v27, %v29 [0, 1, 4, 5] : vector<4xf32>, vector<4xf32>
      %v32 = vector.shuffle %v27, %v29 [2, 3, 6, 7] : vector<4xf32>, vector<4xf32>
      %v33 = vector.shuffle %v28, %v30 [0, 1, 4, 5] : vector<4xf32>, vector<4xf32>
      %v34 = vector.shuffle %v28, %v30 [2, 3, 6, 7] : vector<4xf32>, vector<4xf32>
      %v36 = arith.muli %v13, %v35 : index
      %v37 = arith.muli %v10, %v14 : index
      %v38 = arith.addi %v36, %v37 : index
      vector.store %v31, %p1[%v38] : memref<240xf32>, vector<4xf32>
      %v40 = arith.addi %v38, %v39 : index
      vector.store %v33, %p1[%v40] : memref<240xf32>, vector<4xf32>
      %v42 = arith.addi %v38, %v41 : index
      vector.store %v32, %p1[%v42] : memref<240xf32>, vector<4xf32>
      %v44 = arith.addi %v38, %v43 : index
      vector.store %v34, %p1[%v44] : memref<240xf32>, vector<4xf32>
    }
    return
  }
}
