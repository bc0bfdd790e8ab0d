// A product with a second operand that lies transposed and is no constant: nothing can pack it in advance.
func.func @main(%x: tensor<12x24xf32>, %w: tensor<32x24xf32>) -> tensor<12x32xf32> {
  %0 = "tw.transpose"(%w) {permutation = array<i64: 1, 0>} : (tensor<32x24xf32>) -> tensor<24x32xf32>
  %1 = "tw.matmul"(%x, %0) : (tensor<12x24xf32>, tensor<24x32xf32>) -> tensor<12x32xf32>
  return %1 : tensor<12x32xf32>
}

// LEVEL 3: zen4 avx2 neon
func.func private @transpose_matmul_20249e8a66(%arg0: tensor<32x24xf32>, %arg1: tensor<12x24xf32>) -> tensor<12x32xf32> {
  %0 = tensor.empty() : tensor<24x32xf32>
  %1 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d1, d0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%arg0 : tensor<32x24xf32>) outs(%0 : tensor<24x32xf32>) attrs =  {tw.op = "transpose"} {
  ^bb0(%in: f32, %out: f32):
    linalg.yield %in : f32
  } -> tensor<24x32xf32>
  %cst = arith.constant 0.000000e+00 : f32
  %2 = tensor.empty() : tensor<12x32xf32>
  %3 = linalg.fill ins(%cst : f32) outs(%2 : tensor<12x32xf32>) -> tensor<12x32xf32>
  %4 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%arg1, %1 : tensor<12x24xf32>, tensor<24x32xf32>) outs(%3 : tensor<12x32xf32>) attrs =  {tw.op = "matmul"} {
  ^bb0(%in: f32, %in_0: f32, %out: f32):
    %5 = arith.mulf %in, %in_0 : f32
    %6 = arith.addf %out, %5 : f32
    linalg.yield %6 : f32
  } -> tensor<12x32xf32>
  return %4 : tensor<12x32xf32>
}

// LEVEL 4: zen4
# rule: contraction
# loops: i0, j0, i1, j1, k1
# blocks: s0, s1
# buffers: p0, p1, p2, t0
s.inline('s0')
s1_w = s.cache_write('s1')  # makes p2_c
j1_o, j1_i = s.split('j1', 32)
i1_o, i1_i = s.split('i1', 6)
i1_o_o, i1_o_i = s.split('i1_o', 1)
s.reorder('i1_o_o', 'j1_o', 'i1_o_i', 'k1', 'i1_i', 'j1_i')
i1_o_o_j1_o = s.fuse('i1_o_o', 'j1_o')
s1_p0 = s.cache_read('s1', 'p0', 'i1_o_o_j1_o', order=(1, 0))  # makes p0_c
m_p0_c_o, m_p0_c_i = s.split('m_p0_c', 16)
n_p0_c_o, n_p0_c_i = s.split('n_p0_c', 16)
s.unroll('n_p0_c_i')
s.reorder('n_p0_c_o', 'm_p0_c_o', 'n_p0_c_i', 'm_p0_c_i')
s.vectorize('m_p0_c_i')
m_p2_c_a, n_p2_c_a = s.reverse_compute_at('s1_w', 'i1_o_i')
s.set_scope('p2_c', 'register')
s.unroll('i1_i')
j1_i_o, j1_i_i = s.split('j1_i', 16)
s.unroll('j1_i_o')
s.vectorize('j1_i_i')
s.unroll('m_p2_c_a')
n_p2_c_a_o, n_p2_c_a_i = s.split('n_p2_c_a', 16)
s.unroll('n_p2_c_a_o')
s.vectorize('n_p2_c_a_i')
k1_o, k1_i = s.split('k1', 4)
s.unroll('k1_i')
s.parallel('i1_o_o_j1_o')

def transpose_matmul_20249e8a66(p0: f32[32, 24], p1: f32[12, 24], p2: out(f32[12, 32])):
    for i1_o_o_j1_o in thread(2):
        p0_c = local(f32[24, 32])
        for m_p0_c_o in serial(2):
            for n_p0_c_i in unroll(16):
                for m_p0_c_i in vector(16, lanes=16):
                    s1_p0: p0_c[n_p0_c_i, m_p0_c_o * 16 + m_p0_c_i] = p0[m_p0_c_o * 16 + m_p0_c_i, n_p0_c_i]
        for m_p0_c_o in serial(2):
            for n_p0_c_i in unroll(8):
                for m_p0_c_i in vector(16, lanes=16):
                    s1_p0: p0_c[n_p0_c_i + 16, m_p0_c_o * 16 + m_p0_c_i] = p0[m_p0_c_o * 16 + m_p0_c_i, n_p0_c_i + 16]
        p2_c = register(f32[6, 32])
        for i1_i in unroll(6):
            for j1_i_o in unroll(2):
                for j1_i_i in vector(16, lanes=16):
                    s1.init: p2_c[i1_i, j1_i_o * 16 + j1_i_i] = f32(0.0)
        for k1_o in serial(6):
            for k1_i in unroll(4):
                for i1_i in unroll(6):
                    for j1_i_o in unroll(2):
                        for j1_i_i in vector(16, lanes=16):
                            s1: p2_c[i1_i, j1_i_o * 16 + j1_i_i] = addf(p2_c[i1_i, j1_i_o * 16 + j1_i_i], mulf(p1[i1_o_o_j1_o * 6 + i1_i, k1_o * 4 + k1_i], p0_c[k1_o * 4 + k1_i, j1_i_o * 16 + j1_i_i]))
        for m_p2_c_a in unroll(6):
            for n_p2_c_a_o in unroll(2):
                for n_p2_c_a_i in vector(16, lanes=16):
                    s1_w: p2[i1_o_o_j1_o * 6 + m_p2_c_a, n_p2_c_a_o * 16 + n_p2_c_a_i] = p2_c[m_p2_c_a, n_p2_c_a_o * 16 + n_p2_c_a_i]

// LEVEL 4: avx2
# rule: contraction
# loops: i0, j0, i1, j1, k1
# blocks: s0, s1
# buffers: p0, p1, p2, t0
s.inline('s0')
s1_w = s.cache_write('s1')  # makes p2_c
j1_o, j1_i = s.split('j1', 32)
i1_o, i1_i = s.split('i1', 2)
i1_o_o, i1_o_i = s.split('i1_o', 2)
s.reorder('i1_o_o', 'j1_o', 'i1_o_i', 'k1', 'i1_i', 'j1_i')
i1_o_o_j1_o = s.fuse('i1_o_o', 'j1_o')
s1_p0 = s.cache_read('s1', 'p0', 'i1_o_o_j1_o', order=(1, 0))  # makes p0_c
m_p0_c_o, m_p0_c_i = s.split('m_p0_c', 8)
n_p0_c_o, n_p0_c_i = s.split('n_p0_c', 8)
s.unroll('n_p0_c_i')
s.reorder('n_p0_c_o', 'm_p0_c_o', 'n_p0_c_i', 'm_p0_c_i')
s.vectorize('m_p0_c_i')
m_p2_c_a, n_p2_c_a = s.reverse_compute_at('s1_w', 'i1_o_i')
s.set_scope('p2_c', 'register')
s.unroll('i1_i')
j1_i_o, j1_i_i = s.split('j1_i', 8)
s.unroll('j1_i_o')
s.vectorize('j1_i_i')
s.unroll('m_p2_c_a')
n_p2_c_a_o, n_p2_c_a_i = s.split('n_p2_c_a', 8)
s.unroll('n_p2_c_a_o')
s.vectorize('n_p2_c_a_i')
k1_o, k1_i = s.split('k1', 4)
s.unroll('k1_i')
s.parallel('i1_o_o_j1_o')

def transpose_matmul_20249e8a66(p0: f32[32, 24], p1: f32[12, 24], p2: out(f32[12, 32])):
    for i1_o_o_j1_o in thread(3):
        p0_c = local(f32[24, 32])
        for n_p0_c_o in serial(3):
            for m_p0_c_o in serial(4):
                for n_p0_c_i in unroll(8):
                    for m_p0_c_i in vector(8, lanes=8):
                        s1_p0: p0_c[n_p0_c_o * 8 + n_p0_c_i, m_p0_c_o * 8 + m_p0_c_i] = p0[m_p0_c_o * 8 + m_p0_c_i, n_p0_c_o * 8 + n_p0_c_i]
        for i1_o_i in serial(2):
            p2_c = register(f32[2, 32])
            for i1_i in unroll(2):
                for j1_i_o in unroll(4):
                    for j1_i_i in vector(8, lanes=8):
                        s1.init: p2_c[i1_i, j1_i_o * 8 + j1_i_i] = f32(0.0)
            for k1_o in serial(6):
                for k1_i in unroll(4):
                    for i1_i in unroll(2):
                        for j1_i_o in unroll(4):
                            for j1_i_i in vector(8, lanes=8):
                                s1: p2_c[i1_i, j1_i_o * 8 + j1_i_i] = addf(p2_c[i1_i, j1_i_o * 8 + j1_i_i], mulf(p1[i1_o_o_j1_o * 4 + i1_o_i * 2 + i1_i, k1_o * 4 + k1_i], p0_c[k1_o * 4 + k1_i, j1_i_o * 8 + j1_i_i]))
            for m_p2_c_a in unroll(2):
                for n_p2_c_a_o in unroll(4):
                    for n_p2_c_a_i in vector(8, lanes=8):
                        s1_w: p2[i1_o_o_j1_o * 4 + i1_o_i * 2 + m_p2_c_a, n_p2_c_a_o * 8 + n_p2_c_a_i] = p2_c[m_p2_c_a, n_p2_c_a_o * 8 + n_p2_c_a_i]

// LEVEL 4: neon
# rule: contraction
# loops: i0, j0, i1, j1, k1
# blocks: s0, s1
# buffers: p0, p1, p2, t0
s.inline('s0')
s1_w = s.cache_write('s1')  # makes p2_c
i1_o, i1_i = s.split('i1', 4)
j1_o, j1_i = s.split('j1', 4)
k1_o, k1_i = s.split('k1', 4)
s.reorder('i1_o', 'j1_o', 'k1_o', 'i1_i', 'j1_i', 'k1_i')
i1_o_j1_o = s.fuse('i1_o', 'j1_o')
s1_r = s.rfactor('s1', 'k1_i')  # makes p2_c_r
s.set_scope('p2_c_r', 'register')
s.reorder('i1_i_r', 'j1_i_r', 'k1_i_r')
s.set_order('p2_c', (0, 1))
s.unroll('i1_i')
s.unroll('j1_i')
s.vectorize('k1_i')
s.unroll('i1_i_r')
s.unroll('j1_i_r')
s.vectorize('k1_i_r')
m_p2_c_a, n_p2_c_a = s.reverse_compute_at('s1_w', 'i1_o_j1_o')
s.unroll('m_p2_c_a')
s.unroll('n_p2_c_a')
s.parallel('i1_o_j1_o')

def transpose_matmul_20249e8a66(p0: f32[32, 24], p1: f32[12, 24], p2: out(f32[12, 32])):
    for i1_o_j1_o in thread(24):
        p2_c_r = register(f32[4, 4, 4])
        for i1_i in unroll(4):
            for j1_i in unroll(4):
                for k1_i in vector(4, lanes=4):
                    s1.init: p2_c_r[i1_i, j1_i, k1_i] = f32(0.0)
        for k1_o in serial(6):
            for i1_i in unroll(4):
                for j1_i in unroll(4):
                    for k1_i in vector(4, lanes=4):
                        s1: p2_c_r[i1_i, j1_i, k1_i] = addf(p2_c_r[i1_i, j1_i, k1_i], mulf(p1[i1_o_j1_o // 8 * 4 + i1_i, k1_o * 4 + k1_i], p0[i1_o_j1_o % 8 * 4 + j1_i, k1_o * 4 + k1_i]))
        p2_c = local(f32[4, 4])
        for i1_i_r in unroll(4):
            for j1_i_r in unroll(4):
                s1_r.init: p2_c[i1_i_r, j1_i_r] = f32(0.0)
                for k1_i_r in vector(4, lanes=4):
                    s1_r: p2_c[i1_i_r, j1_i_r] = addf(p2_c[i1_i_r, j1_i_r], p2_c_r[i1_i_r, j1_i_r, k1_i_r])
        for m_p2_c_a in unroll(4):
            for n_p2_c_a in unroll(4):
                s1_w: p2[i1_o_j1_o // 8 * 4 + m_p2_c_a, i1_o_j1_o % 8 * 4 + n_p2_c_a] = p2_c[m_p2_c_a, n_p2_c_a]
