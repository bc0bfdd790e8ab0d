// A row times packed weights, with SiLU: vectors lie along the columns, or along the sum where the columns are few for them.
// CONSTANT w f32 64x48
func.func @main(%x: tensor<1x64xf32>) -> tensor<1x48xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<64x48xf32>
  %0 = "tw.matmul"(%x, %w) : (tensor<1x64xf32>, tensor<64x48xf32>) -> tensor<1x48xf32>
  %1 = "tw.silu"(%0) : (tensor<1x48xf32>) -> tensor<1x48xf32>
  return %1 : tensor<1x48xf32>
}

// LEVEL 3: zen4 avx2 neon
func.func private @matmul_silu_900e8622b9(%arg0: tensor<1x64xf32>, %arg1: tensor<64x48xf32> {tw.constant}) -> tensor<1x48xf32> {
  %cst = arith.constant 0.000000e+00 : f32
  %0 = tensor.empty() : tensor<1x48xf32>
  %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<1x48xf32>) -> tensor<1x48xf32>
  %2 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%arg0, %arg1 : tensor<1x64xf32>, tensor<64x48xf32>) outs(%1 : tensor<1x48xf32>) attrs =  {tw.op = "matmul"} {
  ^bb0(%in: f32, %in_0: f32, %out: f32):
    %5 = arith.mulf %in, %in_0 : f32
    %6 = arith.addf %out, %5 : f32
    linalg.yield %6 : f32
  } -> tensor<1x48xf32>
  %3 = tensor.empty() : tensor<1x48xf32>
  %4 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%2 : tensor<1x48xf32>) outs(%3 : tensor<1x48xf32>) attrs =  {tw.op = "silu"} {
  ^bb0(%in: f32, %out: f32):
    %cst_0 = arith.constant -1.000000e+00 : f32
    %5 = arith.mulf %in, %cst_0 : f32
    %6 = math.exp %5 : f32
    %cst_1 = arith.constant 1.000000e+00 : f32
    %7 = arith.addf %6, %cst_1 : f32
    %8 = arith.divf %in, %7 : f32
    linalg.yield %8 : f32
  } -> tensor<1x48xf32>
  return %4 : tensor<1x48xf32>
}

// LEVEL 4: zen4
# rule: contraction
# loops: j0, k0, j1
# blocks: s0, s1
# buffers: p0, p1, p2, t0
s.reindex('s1', 's0')
j0_o, j0_i = s.split('j0', 12)
s.pack('p1', ((), ()), (1, 0))
k0_o, k0_i = s.split('k0', 16)
s.reorder('j0_o', 'k0_o', 'j0_i', 'k0_i')
s0_r = s.rfactor('s0', 'k0_i')  # makes t0_r
s.set_scope('t0_r', 'register')
s.unroll('j0_i')
s.vectorize('k0_i')
s.unroll('j0_i_r')
s.vectorize('k0_i_r')
n_s1_a, = s.reverse_compute_at('s1', 'j0_o')
s.unroll('n_s1_a')
s.parallel('j0_o')

def matmul_silu_900e8622b9(p0: f32[1, 64], p1: packed(f32[48, 64], splits=((), ()), order=(1, 0)), p2: out(f32[1, 48])):
    for j0_o in thread(4):
        t0_r = register(f32[12, 16])
        for j0_i in unroll(12):
            for k0_i in vector(16, lanes=16):
                s0.init: t0_r[j0_i, k0_i] = f32(0.0)
        for k0_o in serial(4):
            for j0_i in unroll(12):
                for k0_i in vector(16, lanes=16):
                    s0: t0_r[j0_i, k0_i] = addf(t0_r[j0_i, k0_i], mulf(p0[0, k0_o * 16 + k0_i], p1[j0_o * 12 + j0_i, k0_o * 16 + k0_i]))
        t0 = local(f32[1, 12])
        for j0_i_r in unroll(12):
            s0_r.init: t0[0, j0_i_r] = f32(0.0)
            for k0_i_r in vector(16, lanes=16):
                s0_r: t0[0, j0_i_r] = addf(t0[0, j0_i_r], t0_r[j0_i_r, k0_i_r])
        for n_s1_a in unroll(12):
            s1: p2[0, j0_o * 12 + n_s1_a] = divf(t0[0, n_s1_a], addf(exp(mulf(t0[0, n_s1_a], f32(-1.0))), f32(1.0)))

// LEVEL 4: avx2
# rule: contraction
# loops: j0, k0, j1
# blocks: s0, s1
# buffers: p0, p1, p2, t0
s.reindex('s1', 's0')
j0_o, j0_i = s.split('j0', 48)
s.reorder('j0_o', 'k0', 'j0_i')
s.pack('p1', ((), (48,)), (1, 0, 2))
n_s1_a, = s.reverse_compute_at('s1', 'j0_o')
s.set_scope('t0', 'register')
j0_i_o, j0_i_i = s.split('j0_i', 8)
s.unroll('j0_i_o')
s.vectorize('j0_i_i')
n_s1_a_o, n_s1_a_i = s.split('n_s1_a', 8)
s.unroll('n_s1_a_o')
s.vectorize('n_s1_a_i')
k0_o, k0_i = s.split('k0', 4)
s.unroll('k0_i')
s.parallel('j0_o')

def matmul_silu_900e8622b9(
    p0: f32[1, 64],
    p1: packed(f32[1, 64, 48], splits=((), (48,)), order=(1, 0, 2)),
    p2: out(f32[1, 48]),
):
    t0 = register(f32[1, 48])
    for j0_i_o in unroll(6):
        for j0_i_i in vector(8, lanes=8):
            s0.init: t0[0, j0_i_o * 8 + j0_i_i] = f32(0.0)
    for k0_o in serial(16):
        for k0_i in unroll(4):
            for j0_i_o in unroll(6):
                for j0_i_i in vector(8, lanes=8):
                    s0: t0[0, j0_i_o * 8 + j0_i_i] = addf(t0[0, j0_i_o * 8 + j0_i_i], mulf(p0[0, k0_o * 4 + k0_i], p1[0, k0_o * 4 + k0_i, j0_i_o * 8 + j0_i_i]))
    for n_s1_a_o in unroll(6):
        for n_s1_a_i in vector(8, lanes=8):
            s1: p2[0, n_s1_a_o * 8 + n_s1_a_i] = divf(t0[0, n_s1_a_o * 8 + n_s1_a_i], addf(exp(mulf(t0[0, n_s1_a_o * 8 + n_s1_a_i], f32(-1.0))), f32(1.0)))

// LEVEL 4: neon
# rule: contraction
# loops: j0, k0, j1
# blocks: s0, s1
# buffers: p0, p1, p2, t0
s.reindex('s1', 's0')
j0_o, j0_i = s.split('j0', 24)
s.reorder('j0_o', 'k0', 'j0_i')
s.pack('p1', ((), (24,)), (1, 0, 2))
n_s1_a, = s.reverse_compute_at('s1', 'j0_o')
s.set_scope('t0', 'register')
j0_i_o, j0_i_i = s.split('j0_i', 4)
s.unroll('j0_i_o')
s.vectorize('j0_i_i')
n_s1_a_o, n_s1_a_i = s.split('n_s1_a', 4)
s.unroll('n_s1_a_o')
s.vectorize('n_s1_a_i')
k0_o, k0_i = s.split('k0', 4)
s.unroll('k0_i')
s.parallel('j0_o')

def matmul_silu_900e8622b9(
    p0: f32[1, 64],
    p1: packed(f32[2, 64, 24], splits=((), (24,)), order=(1, 0, 2)),
    p2: out(f32[1, 48]),
):
    for j0_o in thread(2):
        t0 = register(f32[1, 24])
        for j0_i_o in unroll(6):
            for j0_i_i in vector(4, lanes=4):
                s0.init: t0[0, j0_i_o * 4 + j0_i_i] = f32(0.0)
        for k0_o in serial(16):
            for k0_i in unroll(4):
                for j0_i_o in unroll(6):
                    for j0_i_i in vector(4, lanes=4):
                        s0: t0[0, j0_i_o * 4 + j0_i_i] = addf(t0[0, j0_i_o * 4 + j0_i_i], mulf(p0[0, k0_o * 4 + k0_i], p1[j0_o, k0_o * 4 + k0_i, j0_i_o * 4 + j0_i_i]))
        for n_s1_a_o in unroll(6):
            for n_s1_a_i in vector(4, lanes=4):
                s1: p2[0, j0_o * 24 + n_s1_a_o * 4 + n_s1_a_i] = divf(t0[0, n_s1_a_o * 4 + n_s1_a_i], addf(exp(mulf(t0[0, n_s1_a_o * 4 + n_s1_a_i], f32(-1.0))), f32(1.0)))
