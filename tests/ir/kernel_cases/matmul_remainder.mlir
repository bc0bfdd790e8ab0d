// Columns that fill no whole number of vectors, in a product of two inputs.
// CODE zen4
func.func @main(%x: tensor<3x6xf32>, %w: tensor<6x21xf32>) -> tensor<3x21xf32> {
  %0 = "tw.matmul"(%x, %w) : (tensor<3x6xf32>, tensor<6x21xf32>) -> tensor<3x21xf32>
  return %0 : tensor<3x21xf32>
}

// LEVEL 3: zen4 avx2 neon
func.func private @matmul_cfcc04428d(%arg0: tensor<3x6xf32>, %arg1: tensor<6x21xf32>) -> tensor<3x21xf32> {
  %cst = arith.constant 0.000000e+00 : f32
  %0 = tensor.empty() : tensor<3x21xf32>
  %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<3x21xf32>) -> tensor<3x21xf32>
  %2 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%arg0, %arg1 : tensor<3x6xf32>, tensor<6x21xf32>) outs(%1 : tensor<3x21xf32>) attrs =  {tw.op = "matmul"} {
  ^bb0(%in: f32, %in_0: f32, %out: f32):
    %3 = arith.mulf %in, %in_0 : f32
    %4 = arith.addf %out, %3 : f32
    linalg.yield %4 : f32
  } -> tensor<3x21xf32>
  return %2 : tensor<3x21xf32>
}

// LEVEL 4: zen4
# rule: contraction
# loops: i0, j0, k0
# blocks: s0
# buffers: p0, p1, p2
s0_w = s.cache_write('s0')  # makes p2_c
j0_o, j0_i = s.split('j0', 32)
i0_o, i0_i = s.split('i0', 3)
s.reorder('j0_o', 'i0_o', 'k0', 'i0_i', 'j0_i')
j0_o_i0_o = s.fuse('j0_o', 'i0_o')
m_p2_c_a, n_p2_c_a = s.reverse_compute_at('s0_w', 'j0_o_i0_o')
s.set_scope('p2_c', 'register')
s.unroll('i0_i')
j0_i_o, j0_i_i = s.split('j0_i', 16)
s.unroll('j0_i_o')
s.vectorize('j0_i_i')
s.unroll('m_p2_c_a')
n_p2_c_a_o, n_p2_c_a_i = s.split('n_p2_c_a', 16)
s.unroll('n_p2_c_a_o')
s.vectorize('n_p2_c_a_i')
s.unroll('k0')
s.parallel('j0_o_i0_o')

def matmul_cfcc04428d(p0: f32[3, 6], p1: f32[6, 21], p2: out(f32[3, 21])):
    p2_c = register(f32[3, 21])
    for i0_i in unroll(3):
        for j0_i_i in vector(16, lanes=16):
            s0.init: p2_c[i0_i, j0_i_i] = f32(0.0)
        for j0_i_i in vector(5, lanes=16):
            s0.init: p2_c[i0_i, j0_i_i + 16] = f32(0.0)
    for k0 in unroll(6):
        for i0_i in unroll(3):
            for j0_i_i in vector(16, lanes=16):
                s0: p2_c[i0_i, j0_i_i] = addf(p2_c[i0_i, j0_i_i], mulf(p0[i0_i, k0], p1[k0, j0_i_i]))
            for j0_i_i in vector(5, lanes=16):
                s0: p2_c[i0_i, j0_i_i + 16] = addf(p2_c[i0_i, j0_i_i + 16], mulf(p0[i0_i, k0], p1[k0, j0_i_i + 16]))
    for m_p2_c_a in unroll(3):
        for n_p2_c_a_i in vector(16, lanes=16):
            s0_w: p2[m_p2_c_a, n_p2_c_a_i] = p2_c[m_p2_c_a, n_p2_c_a_i]
        for n_p2_c_a_i in vector(5, lanes=16):
            s0_w: p2[m_p2_c_a, n_p2_c_a_i + 16] = p2_c[m_p2_c_a, n_p2_c_a_i + 16]

// LEVEL 4: avx2
# rule: contraction
# loops: i0, j0, k0
# blocks: s0
# buffers: p0, p1, p2
s0_w = s.cache_write('s0')  # makes p2_c
j0_o, j0_i = s.split('j0', 24)
i0_o, i0_i = s.split('i0', 3)
s.reorder('j0_o', 'i0_o', 'k0', 'i0_i', 'j0_i')
j0_o_i0_o = s.fuse('j0_o', 'i0_o')
m_p2_c_a, n_p2_c_a = s.reverse_compute_at('s0_w', 'j0_o_i0_o')
s.set_scope('p2_c', 'register')
s.unroll('i0_i')
j0_i_o, j0_i_i = s.split('j0_i', 8)
s.unroll('j0_i_o')
s.vectorize('j0_i_i')
s.unroll('m_p2_c_a')
n_p2_c_a_o, n_p2_c_a_i = s.split('n_p2_c_a', 8)
s.unroll('n_p2_c_a_o')
s.vectorize('n_p2_c_a_i')
k0_o, k0_i = s.split('k0', 2)
s.unroll('k0_i')
s.parallel('j0_o_i0_o')

def matmul_cfcc04428d(p0: f32[3, 6], p1: f32[6, 21], p2: out(f32[3, 21])):
    p2_c = register(f32[3, 21])
    for i0_i in unroll(3):
        for j0_i_i in vector(8, lanes=8):
            s0.init: p2_c[i0_i, j0_i_i] = f32(0.0)
        for j0_i_i in vector(8, lanes=8):
            s0.init: p2_c[i0_i, j0_i_i + 8] = f32(0.0)
        for j0_i_i in vector(5, lanes=8):
            s0.init: p2_c[i0_i, j0_i_i + 16] = f32(0.0)
    for k0_o in serial(3):
        for k0_i in unroll(2):
            for i0_i in unroll(3):
                for j0_i_i in vector(8, lanes=8):
                    s0: p2_c[i0_i, j0_i_i] = addf(p2_c[i0_i, j0_i_i], mulf(p0[i0_i, k0_o * 2 + k0_i], p1[k0_o * 2 + k0_i, j0_i_i]))
                for j0_i_i in vector(8, lanes=8):
                    s0: p2_c[i0_i, j0_i_i + 8] = addf(p2_c[i0_i, j0_i_i + 8], mulf(p0[i0_i, k0_o * 2 + k0_i], p1[k0_o * 2 + k0_i, j0_i_i + 8]))
                for j0_i_i in vector(5, lanes=8):
                    s0: p2_c[i0_i, j0_i_i + 16] = addf(p2_c[i0_i, j0_i_i + 16], mulf(p0[i0_i, k0_o * 2 + k0_i], p1[k0_o * 2 + k0_i, j0_i_i + 16]))
    for m_p2_c_a in unroll(3):
        for n_p2_c_a_i in vector(8, lanes=8):
            s0_w: p2[m_p2_c_a, n_p2_c_a_i] = p2_c[m_p2_c_a, n_p2_c_a_i]
        for n_p2_c_a_i in vector(8, lanes=8):
            s0_w: p2[m_p2_c_a, n_p2_c_a_i + 8] = p2_c[m_p2_c_a, n_p2_c_a_i + 8]
        for n_p2_c_a_i in vector(5, lanes=8):
            s0_w: p2[m_p2_c_a, n_p2_c_a_i + 16] = p2_c[m_p2_c_a, n_p2_c_a_i + 16]

// LEVEL 4: neon
# rule: contraction
# loops: i0, j0, k0
# blocks: s0
# buffers: p0, p1, p2
s0_w = s.cache_write('s0')  # makes p2_c
j0_o, j0_i = s.split('j0', 24)
s.reorder('j0_o', 'i0', 'k0', 'j0_i')
j0_o_i0 = s.fuse('j0_o', 'i0')
n_p2_c_a, = s.reverse_compute_at('s0_w', 'j0_o_i0')
s.set_scope('p2_c', 'register')
j0_i_o, j0_i_i = s.split('j0_i', 4)
s.unroll('j0_i_o')
s.vectorize('j0_i_i')
n_p2_c_a_o, n_p2_c_a_i = s.split('n_p2_c_a', 4)
s.unroll('n_p2_c_a_o')
s.vectorize('n_p2_c_a_i')
s.unroll('k0')
s.parallel('j0_o_i0')

def matmul_cfcc04428d(p0: f32[3, 6], p1: f32[6, 21], p2: out(f32[3, 21])):
    for j0_o_i0 in thread(3):
        p2_c = register(f32[1, 21])
        for j0_i_i in vector(4, lanes=4):
            s0.init: p2_c[0, j0_i_i] = f32(0.0)
        for j0_i_i in vector(4, lanes=4):
            s0.init: p2_c[0, j0_i_i + 4] = f32(0.0)
        for j0_i_i in vector(4, lanes=4):
            s0.init: p2_c[0, j0_i_i + 8] = f32(0.0)
        for j0_i_i in vector(4, lanes=4):
            s0.init: p2_c[0, j0_i_i + 12] = f32(0.0)
        for j0_i_i in vector(4, lanes=4):
            s0.init: p2_c[0, j0_i_i + 16] = f32(0.0)
        for j0_i_i in vector(1, lanes=4):
            s0.init: p2_c[0, j0_i_i + 20] = f32(0.0)
        for k0 in unroll(6):
            for j0_i_i in vector(4, lanes=4):
                s0: p2_c[0, j0_i_i] = addf(p2_c[0, j0_i_i], mulf(p0[j0_o_i0, k0], p1[k0, j0_i_i]))
            for j0_i_i in vector(4, lanes=4):
                s0: p2_c[0, j0_i_i + 4] = addf(p2_c[0, j0_i_i + 4], mulf(p0[j0_o_i0, k0], p1[k0, j0_i_i + 4]))
            for j0_i_i in vector(4, lanes=4):
                s0: p2_c[0, j0_i_i + 8] = addf(p2_c[0, j0_i_i + 8], mulf(p0[j0_o_i0, k0], p1[k0, j0_i_i + 8]))
            for j0_i_i in vector(4, lanes=4):
                s0: p2_c[0, j0_i_i + 12] = addf(p2_c[0, j0_i_i + 12], mulf(p0[j0_o_i0, k0], p1[k0, j0_i_i + 12]))
            for j0_i_i in vector(4, lanes=4):
                s0: p2_c[0, j0_i_i + 16] = addf(p2_c[0, j0_i_i + 16], mulf(p0[j0_o_i0, k0], p1[k0, j0_i_i + 16]))
            for j0_i_i in vector(1, lanes=4):
                s0: p2_c[0, j0_i_i + 20] = addf(p2_c[0, j0_i_i + 20], mulf(p0[j0_o_i0, k0], p1[k0, j0_i_i + 20]))
        for n_p2_c_a_i in vector(4, lanes=4):
            s0_w: p2[j0_o_i0, n_p2_c_a_i] = p2_c[0, n_p2_c_a_i]
        for n_p2_c_a_i in vector(4, lanes=4):
            s0_w: p2[j0_o_i0, n_p2_c_a_i + 4] = p2_c[0, n_p2_c_a_i + 4]
        for n_p2_c_a_i in vector(4, lanes=4):
            s0_w: p2[j0_o_i0, n_p2_c_a_i + 8] = p2_c[0, n_p2_c_a_i + 8]
        for n_p2_c_a_i in vector(4, lanes=4):
            s0_w: p2[j0_o_i0, n_p2_c_a_i + 12] = p2_c[0, n_p2_c_a_i + 12]
        for n_p2_c_a_i in vector(4, lanes=4):
            s0_w: p2[j0_o_i0, n_p2_c_a_i + 16] = p2_c[0, n_p2_c_a_i + 16]
        for n_p2_c_a_i in vector(1, lanes=4):
            s0_w: p2[j0_o_i0, n_p2_c_a_i + 20] = p2_c[0, n_p2_c_a_i + 20]

// LEVEL 5: zen4
module {
  func.func @matmul_cfcc04428d(%p0: memref<18xf32>, %p1: memref<126xf32>, %p2: memref<63xf32> {llvm.noalias}, %scratch: memref<1xi8> {llvm.noalias}, %tid: index, %nt: index) {
    %v1 = arith.constant 0 : index
    %v3 = arith.constant 0.0 : f32
    %v5 = vector.constant_mask [5] : vector<16xi1>
    %v10 = arith.constant 16 : index
    %v11 = arith.constant dense<0.0> : vector<16xf32>
    %v14 = arith.constant 6 : index
    %v19 = arith.constant 12 : index
    %v24 = arith.constant 1 : index
    %v26 = arith.constant 21 : index
    %v30 = arith.constant 37 : index
    %v33 = arith.constant 7 : index
    %v38 = arith.constant 13 : index
    %v43 = arith.constant 2 : index
    %v45 = arith.constant 42 : index
    %v49 = arith.constant 58 : index
    %v52 = arith.constant 8 : index
    %v57 = arith.constant 14 : index
    %v62 = arith.constant 3 : index
    %v64 = arith.constant 63 : index
    %v68 = arith.constant 79 : index
    %v71 = arith.constant 9 : index
    %v76 = arith.constant 15 : index
    %v81 = arith.constant 4 : index
    %v83 = arith.constant 84 : index
    %v87 = arith.constant 100 : index
    %v90 = arith.constant 10 : index
    %v99 = arith.constant 5 : index
    %v101 = arith.constant 105 : index
    %v105 = arith.constant 121 : index
    %v108 = arith.constant 11 : index
    %v113 = arith.constant 17 : index
    %v2 = arith.cmpi eq, %tid, %v1 : index
    scf.if %v2 {
      %v4 = vector.broadcast %v3 : f32 to vector<16xf32>
      %v6 = memref.load %p0[%v1] : memref<18xf32>
      %v7 = vector.load %p1[%v1] : memref<126xf32>, vector<16xf32>
      %v8 = vector.broadcast %v6 : f32 to vector<16xf32>
      %v9 = math.fma %v8, %v7, %v4 : vector<16xf32>
      %v12 = vector.maskedload %p1[%v10], %v5, %v11 : memref<126xf32>, vector<16xi1>, vector<16xf32> into vector<16xf32>
      %v13 = math.fma %v8, %v12, %v4 : vector<16xf32>
      %v15 = memref.load %p0[%v14] : memref<18xf32>
      %v16 = vector.broadcast %v15 : f32 to vector<16xf32>
      %v17 = math.fma %v16, %v7, %v4 : vector<16xf32>
      %v18 = math.fma %v16, %v12, %v4 : vector<16xf32>
      %v20 = memref.load %p0[%v19] : memref<18xf32>
      %v21 = vector.broadcast %v20 : f32 to vector<16xf32>
      %v22 = math.fma %v21, %v7, %v4 : vector<16xf32>
      %v23 = math.fma %v21, %v12, %v4 : vector<16xf32>
      %v25 = memref.load %p0[%v24] : memref<18xf32>
      %v27 = vector.load %p1[%v26] : memref<126xf32>, vector<16xf32>
      %v28 = vector.broadcast %v25 : f32 to vector<16xf32>
      %v29 = math.fma %v28, %v27, %v9 : vector<16xf32>
      %v31 = vector.maskedload %p1[%v30], %v5, %v11 : memref<126xf32>, vector<16xi1>, vector<16xf32> into vector<16xf32>
      %v32 = math.fma %v28, %v31, %v13 : vector<16xf32>
      %v34 = memref.load %p0[%v33] : memref<18xf32>
      %v35 = vector.broadcast %v34 : f32 to vector<16xf32>
      %v36 = math.fma %v35, %v27, %v17 : vector<16xf32>
      %v37 = math.fma %v35, %v31, %v18 : vector<16xf32>
      %v39 = memref.load %p0[%v38] : memref<18xf32>
      %v40 = vector.broadcast %v39 : f32 to vector<16xf32>
      %v41 = math.fma %v40, %v27, %v22 : vector<16xf32>
      %v42 = math.fma %v40, %v31, %v23 : vector<16xf32>
      %v44 = memref.load %p0[%v43] : memref<18xf32>
      %v46 = vector.load %p1[%v45] : memref<126xf32>, vector<16xf32>
      %v47 = vector.broadcast %v44 : f32 to vector<16xf32>
      %v48 = math.fma %v47, %v46, %v29 : vector<16xf32>
      %v50 = vector.maskedload %p1[%v49], %v5, %v11 : memref<126xf32>, vector<16xi1>, vector<16xf32> into vector<16xf32>
      %v51 = math.fma %v47, %v50, %v32 : vector<16xf32>
      %v53 = memref.load %p0[%v52] : memref<18xf32>
      %v54 = vector.broadcast %v53 : f32 to vector<16xf32>
      %v55 = math.fma %v54, %v46, %v36 : vector<16xf32>
      %v56 = math.fma %v54, %v50, %v37 : vector<16xf32>
      %v58 = memref.load %p0[%v57] : memref<18xf32>
      %v59 = vector.broadcast %v58 : f32 to vector<16xf32>
      %v60 = math.fma %v59, %v46, %v41 : vector<16xf32>
      %v61 = math.fma %v59, %v50, %v42 : vector<16xf32>
      %v63 = memref.load %p0[%v62] : memref<18xf32>
      %v65 = vector.load %p1[%v64] : memref<126xf32>, vector<16xf32>
      %v66 = vector.broadcast %v63 : f32 to vector<16xf32>
      %v67 = math.fma %v66, %v65, %v48 : vector<16xf32>
      %v69 = vector.maskedload %p1[%v68], %v5, %v11 : memref<126xf32>, vector<16xi1>, vector<16xf32> into vector<16xf32>
      %v70 = math.fma %v66, %v69, %v51 : vector<16xf32>
      %v72 = memref.load %p0[%v71] : memref<18xf32>
      %v73 = vector.broadcast %v72 : f32 to vector<16xf32>
      %v74 = math.fma %v73, %v65, %v55 : vector<16xf32>
      %v75 = math.fma %v73, %v69, %v56 : vector<16xf32>
      %v77 = memref.load %p0[%v76] : memref<18xf32>
      %v78 = vector.broadcast %v77 : f32 to vector<16xf32>
      %v79 = math.fma %v78, %v65, %v60 : vector<16xf32>
      %v80 = math.fma %v78, %v69, %v61 : vector<16xf32>
      %v82 = memref.load %p0[%v81] : memref<18xf32>
      %v84 = vector.load %p1[%v83] : memref<126xf32>, vector<16xf32>
      %v85 = vector.broadcast %v82 : f32 to vector<16xf32>
      %v86 = math.fma %v85, %v84, %v67 : vector<16xf32>
      %v88 = vector.maskedload %p1[%v87], %v5, %v11 : memref<126xf32>, vector<16xi1>, vector<16xf32> into vector<16xf32>
      %v89 = math.fma %v85, %v88, %v70 : vector<16xf32>
      %v91 = memref.load %p0[%v90] : memref<18xf32>
      %v92 = vector.broadcast %v91 : f32 to vector<16xf32>
      %v93 = math.fma %v92, %v84, %v74 : vector<16xf32>
      %v94 = math.fma %v92, %v88, %v75 : vector<16xf32>
      %v95 = memref.load %p0[%v10] : memref<18xf32>
      %v96 = vector.broadcast %v95 : f32 to vector<16xf32>
      %v97 = math.fma %v96, %v84, %v79 : vector<16xf32>
      %v98 = math.fma %v96, %v88, %v80 : vector<16xf32>
      %v100 = memref.load %p0[%v99] : memref<18xf32>
      %v102 = vector.load %p1[%v101] : memref<126xf32>, vector<16xf32>
      %v103 = vector.broadcast %v100 : f32 to vector<16xf32>
      %v104 = math.fma %v103, %v102, %v86 : vector<16xf32>
      %v106 = vector.maskedload %p1[%v105], %v5, %v11 : memref<126xf32>, vector<16xi1>, vector<16xf32> into vector<16xf32>
      %v107 = math.fma %v103, %v106, %v89 : vector<16xf32>
      %v109 = memref.load %p0[%v108] : memref<18xf32>
      %v110 = vector.broadcast %v109 : f32 to vector<16xf32>
      %v111 = math.fma %v110, %v102, %v93 : vector<16xf32>
      %v112 = math.fma %v110, %v106, %v94 : vector<16xf32>
      %v114 = memref.load %p0[%v113] : memref<18xf32>
      %v115 = vector.broadcast %v114 : f32 to vector<16xf32>
      %v116 = math.fma %v115, %v102, %v97 : vector<16xf32>
      %v117 = math.fma %v115, %v106, %v98 : vector<16xf32>
      vector.store %v104, %p2[%v1] : memref<63xf32>, vector<16xf32>
      vector.maskedstore %p2[%v10], %v5, %v107 : memref<63xf32>, vector<16xi1>, vector<16xf32>
      vector.store %v111, %p2[%v26] : memref<63xf32>, vector<16xf32>
      vector.maskedstore %p2[%v30], %v5, %v112 : memref<63xf32>, vector<16xi1>, vector<16xf32>
      vector.store %v116, %p2[%v45] : memref<63xf32>, vector<16xf32>
      vector.maskedstore %p2[%v49], %v5, %v117 : memref<63xf32>, vector<16xi1>, vector<16xf32>
    }
    return
  }
}
