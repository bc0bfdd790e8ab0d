// Sums of columns: rows are added as vectors.
// CODE neon
func.func @main(%x: tensor<8x16xf32>) -> tensor<16xf32> {
  %0 = "tw.reduce_sum"(%x) {axes = array<i64: 0>} : (tensor<8x16xf32>) -> tensor<16xf32>
  return %0 : tensor<16xf32>
}

// LEVEL 3: zen4 avx2 neon
func.func private @reduce_sum_3f3c0216db(%arg0: tensor<8x16xf32>) -> tensor<1x16xf32> {
  %cst = arith.constant 0.000000e+00 : f32
  %0 = tensor.empty() : tensor<1x16xf32>
  %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<1x16xf32>) -> tensor<1x16xf32>
  %2 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (0, d1)>], iterator_types = ["reduction", "parallel"]} ins(%arg0 : tensor<8x16xf32>) outs(%1 : tensor<1x16xf32>) attrs =  {tw.op = "reduce_sum"} {
  ^bb0(%in: f32, %out: f32):
    %3 = arith.addf %in, %out : f32
    linalg.yield %3 : f32
  } -> tensor<1x16xf32>
  return %2 : tensor<1x16xf32>
}

// LEVEL 4: zen4
# rule: contraction
# loops: i0, j0
# blocks: s0
# buffers: p0, p1
s0_w = s.cache_write('s0')  # makes p1_c
j0_o, j0_i = s.split('j0', 16)
s.reorder('j0_o', 'i0', 'j0_i')
n_p1_c_a, = s.reverse_compute_at('s0_w', 'j0_o')
s.set_scope('p1_c', 'register')
j0_i_o, j0_i_i = s.split('j0_i', 16)
s.unroll('j0_i_o')
s.vectorize('j0_i_i')
n_p1_c_a_o, n_p1_c_a_i = s.split('n_p1_c_a', 16)
s.unroll('n_p1_c_a_o')
s.vectorize('n_p1_c_a_i')
i0_o, i0_i = s.split('i0', 4)
s.unroll('i0_i')
s.parallel('j0_o')

def reduce_sum_3f3c0216db(p0: f32[8, 16], p1: out(f32[1, 16])):
    p1_c = register(f32[1, 16])
    for j0_i_i in vector(16, lanes=16):
        s0.init: p1_c[0, j0_i_i] = f32(0.0)
    for i0_o in serial(2):
        for i0_i in unroll(4):
            for j0_i_i in vector(16, lanes=16):
                s0: p1_c[0, j0_i_i] = addf(p0[i0_o * 4 + i0_i, j0_i_i], p1_c[0, j0_i_i])
    for n_p1_c_a_i in vector(16, lanes=16):
        s0_w: p1[0, n_p1_c_a_i] = p1_c[0, n_p1_c_a_i]

// LEVEL 4: avx2
# rule: contraction
# loops: i0, j0
# blocks: s0
# buffers: p0, p1
s0_w = s.cache_write('s0')  # makes p1_c
j0_o, j0_i = s.split('j0', 16)
s.reorder('j0_o', 'i0', 'j0_i')
n_p1_c_a, = s.reverse_compute_at('s0_w', 'j0_o')
s.set_scope('p1_c', 'register')
j0_i_o, j0_i_i = s.split('j0_i', 8)
s.unroll('j0_i_o')
s.vectorize('j0_i_i')
n_p1_c_a_o, n_p1_c_a_i = s.split('n_p1_c_a', 8)
s.unroll('n_p1_c_a_o')
s.vectorize('n_p1_c_a_i')
i0_o, i0_i = s.split('i0', 4)
s.unroll('i0_i')
s.parallel('j0_o')

def reduce_sum_3f3c0216db(p0: f32[8, 16], p1: out(f32[1, 16])):
    p1_c = register(f32[1, 16])
    for j0_i_o in unroll(2):
        for j0_i_i in vector(8, lanes=8):
            s0.init: p1_c[0, j0_i_o * 8 + j0_i_i] = f32(0.0)
    for i0_o in serial(2):
        for i0_i in unroll(4):
            for j0_i_o in unroll(2):
                for j0_i_i in vector(8, lanes=8):
                    s0: p1_c[0, j0_i_o * 8 + j0_i_i] = addf(p0[i0_o * 4 + i0_i, j0_i_o * 8 + j0_i_i], p1_c[0, j0_i_o * 8 + j0_i_i])
    for n_p1_c_a_o in unroll(2):
        for n_p1_c_a_i in vector(8, lanes=8):
            s0_w: p1[0, n_p1_c_a_o * 8 + n_p1_c_a_i] = p1_c[0, n_p1_c_a_o * 8 + n_p1_c_a_i]

// LEVEL 4: neon
# rule: contraction
# loops: i0, j0
# blocks: s0
# buffers: p0, p1
s0_w = s.cache_write('s0')  # makes p1_c
j0_o, j0_i = s.split('j0', 16)
s.reorder('j0_o', 'i0', 'j0_i')
n_p1_c_a, = s.reverse_compute_at('s0_w', 'j0_o')
s.set_scope('p1_c', 'register')
j0_i_o, j0_i_i = s.split('j0_i', 4)
s.unroll('j0_i_o')
s.vectorize('j0_i_i')
n_p1_c_a_o, n_p1_c_a_i = s.split('n_p1_c_a', 4)
s.unroll('n_p1_c_a_o')
s.vectorize('n_p1_c_a_i')
i0_o, i0_i = s.split('i0', 4)
s.unroll('i0_i')
s.parallel('j0_o')

def reduce_sum_3f3c0216db(p0: f32[8, 16], p1: out(f32[1, 16])):
    p1_c = register(f32[1, 16])
    for j0_i_o in unroll(4):
        for j0_i_i in vector(4, lanes=4):
            s0.init: p1_c[0, j0_i_o * 4 + j0_i_i] = f32(0.0)
    for i0_o in serial(2):
        for i0_i in unroll(4):
            for j0_i_o in unroll(4):
                for j0_i_i in vector(4, lanes=4):
                    s0: p1_c[0, j0_i_o * 4 + j0_i_i] = addf(p0[i0_o * 4 + i0_i, j0_i_o * 4 + j0_i_i], p1_c[0, j0_i_o * 4 + j0_i_i])
    for n_p1_c_a_o in unroll(4):
        for n_p1_c_a_i in vector(4, lanes=4):
            s0_w: p1[0, n_p1_c_a_o * 4 + n_p1_c_a_i] = p1_c[0, n_p1_c_a_o * 4 + n_p1_c_a_i]

// LEVEL 5: neon
module {
  func.func @reduce_sum_3f3c0216db(%p0: memref<128xf32>, %p1: memref<16xf32> {llvm.noalias}, %scratch: memref<1xi8> {llvm.noalias}, %tid: index, %nt: index) {
    %v1 = arith.constant 0 : index
    %v3 = arith.constant 0.0 : f32
    %v5 = arith.constant 2 : index
    %v15 = arith.constant 1 : index
    %v16 = arith.constant 64 : index
    %v20 = arith.constant 4 : index
    %v24 = arith.constant 8 : index
    %v28 = arith.constant 12 : index
    %v32 = arith.constant 16 : index
    %v36 = arith.constant 20 : index
    %v40 = arith.constant 24 : index
    %v44 = arith.constant 28 : index
    %v48 = arith.constant 32 : index
    %v52 = arith.constant 36 : index
    %v56 = arith.constant 40 : index
    %v60 = arith.constant 44 : index
    %v64 = arith.constant 48 : index
    %v68 = arith.constant 52 : index
    %v72 = arith.constant 56 : index
    %v76 = arith.constant 60 : index
    %v2 = arith.cmpi eq, %tid, %v1 : index
    scf.if %v2 {
      %v4 = vector.broadcast %v3 : f32 to vector<4xf32>
      %v11, %v12, %v13, %v14 = scf.for %v6 = %v1 to %v5 step %v15 iter_args(%v7 = %v4, %v8 = %v4, %v9 = %v4, %v10 = %v4) -> (vector<4xf32>, vector<4xf32>, vector<4xf32>, vector<4xf32>) {
        %v17 = arith.muli %v6, %v16 : index
        %v18 = vector.load %p0[%v17] : memref<128xf32>, vector<4xf32>
        %v19 = arith.addf %v18, %v7 : vector<4xf32>
        %v21 = arith.addi %v17, %v20 : index
        %v22 = vector.load %p0[%v21] : memref<128xf32>, vector<4xf32>
        %v23 = arith.addf %v22, %v8 : vector<4xf32>
        %v25 = arith.addi %v17, %v24 : index
        %v26 = vector.load %p0[%v25] : memref<128xf32>, vector<4xf32>
        %v27 = arith.addf %v26, %v9 : vector<4xf32>
        %v29 = arith.addi %v17, %v28 : index
        %v30 = vector.load %p0[%v29] : memref<128xf32>, vector<4xf32>
        %v31 = arith.addf %v30, %v10 : vector<4xf32>
        %v33 = arith.addi %v17, %v32 : index
        %v34 = vector.load %p0[%v33] : memref<128xf32>, vector<4xf32>
        %v35 = arith.addf %v34, %v19 : vector<4xf32>
        %v37 = arith.addi %v17, %v36 : index
        %v38 = vector.load %p0[%v37] : memref<128xf32>, vector<4xf32>
        %v39 = arith.addf %v38, %v23 : vector<4xf32>
        %v41 = arith.addi %v17, %v40 : index
        %v42 = vector.load %p0[%v41] : memref<128xf32>, vector<4xf32>
        %v43 = arith.addf %v42, %v27 : vector<4xf32>
        %v45 = arith.addi %v17, %v44 : index
        %v46 = vector.load %p0[%v45] : memref<128xf32>, vector<4xf32>
        %v47 = arith.addf %v46, %v31 : vector<4xf32>
        %v49 = arith.addi %v17, %v48 : index
        %v50 = vector.load %p0[%v49] : memref<128xf32>, vector<4xf32>
        %v51 = arith.addf %v50, %v35 : vector<4xf32>
        %v53 = arith.addi %v17, %v52 : index
        %v54 = vector.load %p0[%v53] : memref<128xf32>, vector<4xf32>
        %v55 = arith.addf %v54, %v39 : vector<4xf32>
        %v57 = arith.addi %v17, %v56 : index
        %v58 = vector.load %p0[%v57] : memref<128xf32>, vector<4xf32>
        %v59 = arith.addf %v58, %v43 : vector<4xf32>
        %v61 = arith.addi %v17, %v60 : index
        %v62 = vector.load %p0[%v61] : memref<128xf32>, vector<4xf32>
        %v63 = arith.addf %v62, %v47 : vector<4xf32>
        %v65 = arith.addi %v17, %v64 : index
        %v66 = vector.load %p0[%v65] : memref<128xf32>, vector<4xf32>
        %v67 = arith.addf %v66, %v51 : vector<4xf32>
        %v69 = arith.addi %v17, %v68 : index
        %v70 = vector.load %p0[%v69] : memref<128xf32>, vector<4xf32>
        %v71 = arith.addf %v70, %v55 : vector<4xf32>
        %v73 = arith.addi %v17, %v72 : index
        %v74 = vector.load %p0[%v73] : memref<128xf32>, vector<4xf32>
        %v75 = arith.addf %v74, %v59 : vector<4xf32>
        %v77 = arith.addi %v17, %v76 : index
        %v78 = vector.load %p0[%v77] : memref<128xf32>, vector<4xf32>
        %v79 = arith.addf %v78, %v63 : vector<4xf32>
        scf.yield %v67, %v71, %v75, %v79 : vector<4xf32>, vector<4xf32>, vector<4xf32>, vector<4xf32>
      }
      vector.store %v11, %p1[%v1] : memref<16xf32>, vector<4xf32>
      vector.store %v12, %p1[%v20] : memref<16xf32>, vector<4xf32>
      vector.store %v13, %p1[%v24] : memref<16xf32>, vector<4xf32>
      vector.store %v14, %p1[%v28] : memref<16xf32>, vector<4xf32>
    }
    return
  }
}
