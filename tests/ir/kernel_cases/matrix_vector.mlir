// A matrix times a vector: sums along rows that are read once.
func.func @main(%w: tensor<48x64xf32>, %x: tensor<64xf32>) -> tensor<48xf32> {
  %0 = "tw.matmul"(%w, %x) : (tensor<48x64xf32>, tensor<64xf32>) -> tensor<48xf32>
  return %0 : tensor<48xf32>
}

// LEVEL 3: zen4 avx2 neon
func.func private @matmul_c35c04ecb3(%arg0: tensor<48x64xf32>, %arg1: tensor<64x1xf32>) -> tensor<48x1xf32> {
  %cst = arith.constant 0.000000e+00 : f32
  %0 = tensor.empty() : tensor<48x1xf32>
  %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<48x1xf32>) -> tensor<48x1xf32>
  %2 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%arg0, %arg1 : tensor<48x64xf32>, tensor<64x1xf32>) outs(%1 : tensor<48x1xf32>) attrs =  {tw.op = "matmul"} {
  ^bb0(%in: f32, %in_0: f32, %out: f32):
    %3 = arith.mulf %in, %in_0 : f32
    %4 = arith.addf %out, %3 : f32
    linalg.yield %4 : f32
  } -> tensor<48x1xf32>
  return %2 : tensor<48x1xf32>
}

// LEVEL 4: zen4
# rule: contraction
# loops: i0, k0
# blocks: s0
# buffers: p0, p1, p2
s0_w = s.cache_write('s0')  # makes p2_c
i0_o, i0_i = s.split('i0', 12)
k0_o, k0_i = s.split('k0', 16)
s.reorder('i0_o', 'k0_o', 'i0_i', 'k0_i')
s0_r = s.rfactor('s0', 'k0_i')  # makes p2_c_r
s.set_scope('p2_c_r', 'register')
s.unroll('i0_i')
s.vectorize('k0_i')
s.unroll('i0_i_r')
s.vectorize('k0_i_r')
m_p2_c_a, = s.reverse_compute_at('s0_w', 'i0_o')
s.unroll('m_p2_c_a')
s.parallel('i0_o')

def matmul_c35c04ecb3(p0: f32[48, 64], p1: f32[64, 1], p2: out(f32[48, 1])):
    for i0_o in thread(4):
        p2_c_r = register(f32[12, 16])
        for i0_i in unroll(12):
            for k0_i in vector(16, lanes=16):
                s0.init: p2_c_r[i0_i, k0_i] = f32(0.0)
        for k0_o in serial(4):
            for i0_i in unroll(12):
                for k0_i in vector(16, lanes=16):
                    s0: p2_c_r[i0_i, k0_i] = addf(p2_c_r[i0_i, k0_i], mulf(p0[i0_o * 12 + i0_i, k0_o * 16 + k0_i], p1[k0_o * 16 + k0_i, 0]))
        p2_c = local(f32[12, 1])
        for i0_i_r in unroll(12):
            s0_r.init: p2_c[i0_i_r, 0] = f32(0.0)
            for k0_i_r in vector(16, lanes=16):
                s0_r: p2_c[i0_i_r, 0] = addf(p2_c[i0_i_r, 0], p2_c_r[i0_i_r, k0_i_r])
        for m_p2_c_a in unroll(12):
            s0_w: p2[i0_o * 12 + m_p2_c_a, 0] = p2_c[m_p2_c_a, 0]

// LEVEL 4: avx2
# rule: contraction
# loops: i0, k0
# blocks: s0
# buffers: p0, p1, p2
s0_w = s.cache_write('s0')  # makes p2_c
i0_o, i0_i = s.split('i0', 7)
k0_o, k0_i = s.split('k0', 8)
s.reorder('i0_o', 'k0_o', 'i0_i', 'k0_i')
s0_r = s.rfactor('s0', 'k0_i')  # makes p2_c_r
s.set_scope('p2_c_r', 'register')
s.unroll('i0_i')
s.vectorize('k0_i')
s.unroll('i0_i_r')
s.vectorize('k0_i_r')
m_p2_c_a, = s.reverse_compute_at('s0_w', 'i0_o')
s.unroll('m_p2_c_a')
s.parallel('i0_o')

def matmul_c35c04ecb3(p0: f32[48, 64], p1: f32[64, 1], p2: out(f32[48, 1])):
    for i0_o in thread(7):
        if i0_o < 6:
            p2_c_r = register(f32[7, 8])
            for i0_i in unroll(7):
                for k0_i in vector(8, lanes=8):
                    s0.init: p2_c_r[i0_i, k0_i] = f32(0.0)
            for k0_o in serial(8):
                for i0_i in unroll(7):
                    for k0_i in vector(8, lanes=8):
                        s0: p2_c_r[i0_i, k0_i] = addf(p2_c_r[i0_i, k0_i], mulf(p0[i0_o * 7 + i0_i, k0_o * 8 + k0_i], p1[k0_o * 8 + k0_i, 0]))
            p2_c = local(f32[7, 1])
            for i0_i_r in unroll(7):
                s0_r.init: p2_c[i0_i_r, 0] = f32(0.0)
                for k0_i_r in vector(8, lanes=8):
                    s0_r: p2_c[i0_i_r, 0] = addf(p2_c[i0_i_r, 0], p2_c_r[i0_i_r, k0_i_r])
            for m_p2_c_a in unroll(7):
                s0_w: p2[i0_o * 7 + m_p2_c_a, 0] = p2_c[m_p2_c_a, 0]
        else:
            p2_c_r = register(f32[7, 8])
            for i0_i in unroll(6):
                for k0_i in vector(8, lanes=8):
                    s0.init: p2_c_r[i0_i, k0_i] = f32(0.0)
            for k0_o in serial(8):
                for i0_i in unroll(6):
                    for k0_i in vector(8, lanes=8):
                        s0: p2_c_r[i0_i, k0_i] = addf(p2_c_r[i0_i, k0_i], mulf(p0[i0_i + 42, k0_o * 8 + k0_i], p1[k0_o * 8 + k0_i, 0]))
            p2_c = local(f32[7, 1])
            for i0_i_r in unroll(6):
                s0_r.init: p2_c[i0_i_r, 0] = f32(0.0)
                for k0_i_r in vector(8, lanes=8):
                    s0_r: p2_c[i0_i_r, 0] = addf(p2_c[i0_i_r, 0], p2_c_r[i0_i_r, k0_i_r])
            for m_p2_c_a in unroll(6):
                s0_w: p2[m_p2_c_a + 42, 0] = p2_c[m_p2_c_a, 0]

// LEVEL 4: neon
# rule: contraction
# loops: i0, k0
# blocks: s0
# buffers: p0, p1, p2
s0_w = s.cache_write('s0')  # makes p2_c
i0_o, i0_i = s.split('i0', 4)
k0_o, k0_i = s.split('k0', 4)
s.reorder('i0_o', 'k0_o', 'i0_i', 'k0_i')
s0_r = s.rfactor('s0', 'k0_i')  # makes p2_c_r
s.set_scope('p2_c_r', 'register')
s.unroll('i0_i')
s.vectorize('k0_i')
s.unroll('i0_i_r')
s.vectorize('k0_i_r')
m_p2_c_a, = s.reverse_compute_at('s0_w', 'i0_o')
s.unroll('m_p2_c_a')
s.parallel('i0_o')

def matmul_c35c04ecb3(p0: f32[48, 64], p1: f32[64, 1], p2: out(f32[48, 1])):
    for i0_o in thread(12):
        p2_c_r = register(f32[4, 4])
        for i0_i in unroll(4):
            for k0_i in vector(4, lanes=4):
                s0.init: p2_c_r[i0_i, k0_i] = f32(0.0)
        for k0_o in serial(16):
            for i0_i in unroll(4):
                for k0_i in vector(4, lanes=4):
                    s0: p2_c_r[i0_i, k0_i] = addf(p2_c_r[i0_i, k0_i], mulf(p0[i0_o * 4 + i0_i, k0_o * 4 + k0_i], p1[k0_o * 4 + k0_i, 0]))
        p2_c = local(f32[4, 1])
        for i0_i_r in unroll(4):
            s0_r.init: p2_c[i0_i_r, 0] = f32(0.0)
            for k0_i_r in vector(4, lanes=4):
                s0_r: p2_c[i0_i_r, 0] = addf(p2_c[i0_i_r, 0], p2_c_r[i0_i_r, k0_i_r])
        for m_p2_c_a in unroll(4):
            s0_w: p2[i0_o * 4 + m_p2_c_a, 0] = p2_c[m_p2_c_a, 0]
