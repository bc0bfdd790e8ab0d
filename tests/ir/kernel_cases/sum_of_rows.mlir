// Sums along rows: sixteen rows together where their sums fill a vector.
func.func @main(%x: tensor<16x40xf32>) -> tensor<16xf32> {
  %0 = "tw.reduce_sum"(%x) {axes = array<i64: 1>} : (tensor<16x40xf32>) -> tensor<16xf32>
  return %0 : tensor<16xf32>
}

// LEVEL 3: zen4 avx2 neon
func.func private @reduce_sum_a6d7f169ff(%arg0: tensor<16x40xf32>) -> tensor<16x1xf32> {
  %cst = arith.constant 0.000000e+00 : f32
  %0 = tensor.empty() : tensor<16x1xf32>
  %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<16x1xf32>) -> tensor<16x1xf32>
  %2 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, 0)>], iterator_types = ["parallel", "reduction"]} ins(%arg0 : tensor<16x40xf32>) outs(%1 : tensor<16x1xf32>) attrs =  {tw.op = "reduce_sum"} {
  ^bb0(%in: f32, %out: f32):
    %3 = arith.addf %in, %out : f32
    linalg.yield %3 : f32
  } -> tensor<16x1xf32>
  return %2 : tensor<16x1xf32>
}

// LEVEL 4: zen4
# rule: rows
# loops: i0, j0
# blocks: s0
# buffers: p0, p1
i0_o, i0_i = s.split('i0', 16)
j0_o, j0_i = s.split('j0', 16)
s.reorder('j0_o', 'i0_i', 'j0_i')
s0_r = s.rfactor('s0', 'j0_i')  # makes p1_r
s.set_scope('p1_r', 'register')
s.unroll('j0_o')
s.unroll('i0_i')
s.vectorize('j0_i')
s.unroll('i0_i_r')
s.vectorize('j0_i_r')
s.parallel('i0_o')

def reduce_sum_a6d7f169ff(p0: f32[16, 40], p1: out(f32[16, 1])):
    p1_r = register(f32[16, 16])
    for i0_i in unroll(16):
        for j0_i in vector(16, lanes=16):
            s0.init: p1_r[i0_i, j0_i] = f32(0.0)
    for i0_i in unroll(16):
        for j0_i in vector(16, lanes=16):
            s0: p1_r[i0_i, j0_i] = addf(p1_r[i0_i, j0_i], p0[i0_i, j0_i])
    for i0_i in unroll(16):
        for j0_i in vector(16, lanes=16):
            s0: p1_r[i0_i, j0_i] = addf(p1_r[i0_i, j0_i], p0[i0_i, j0_i + 16])
    for i0_i in unroll(16):
        for j0_i in vector(8, lanes=16):
            s0: p1_r[i0_i, j0_i] = addf(p1_r[i0_i, j0_i], p0[i0_i, j0_i + 32])
    for i0_i_r in unroll(16):
        s0_r.init: p1[i0_i_r, 0] = f32(0.0)
        for j0_i_r in vector(16, lanes=16):
            s0_r: p1[i0_i_r, 0] = addf(p1[i0_i_r, 0], p1_r[i0_i_r, j0_i_r])

// LEVEL 4: avx2
# rule: rows
# loops: i0, j0
# blocks: s0
# buffers: p0, p1
j0_o, j0_i = s.split('j0', 32)
s0_r = s.rfactor('s0', 'j0_i')  # makes p1_r
s.set_scope('p1_r', 'register')
j0_i_o, j0_i_i = s.split('j0_i', 8)
s.unroll('j0_i_o')
s.vectorize('j0_i_i')
j0_i_r_o, j0_i_r_i = s.split('j0_i_r', 8)
s.unroll('j0_i_r_o')
s.vectorize('j0_i_r_i')
s.parallel('i0')

def reduce_sum_a6d7f169ff(p0: f32[16, 40], p1: out(f32[16, 1])):
    for i0 in thread(16):
        p1_r = register(f32[32])
        for j0_i_o in unroll(4):
            for j0_i_i in vector(8, lanes=8):
                s0.init: p1_r[j0_i_o * 8 + j0_i_i] = f32(0.0)
        for j0_i_o in unroll(4):
            for j0_i_i in vector(8, lanes=8):
                s0: p1_r[j0_i_o * 8 + j0_i_i] = addf(p1_r[j0_i_o * 8 + j0_i_i], p0[i0, j0_i_o * 8 + j0_i_i])
        for j0_i_i in vector(8, lanes=8):
            s0: p1_r[j0_i_i] = addf(p1_r[j0_i_i], p0[i0, j0_i_i + 32])
        s0_r.init: p1[i0, 0] = f32(0.0)
        for j0_i_r_o in unroll(4):
            for j0_i_r_i in vector(8, lanes=8):
                s0_r: p1[i0, 0] = addf(p1[i0, 0], p1_r[j0_i_r_o * 8 + j0_i_r_i])

// LEVEL 4: neon
# rule: rows
# loops: i0, j0
# blocks: s0
# buffers: p0, p1
j0_o, j0_i = s.split('j0', 16)
s0_r = s.rfactor('s0', 'j0_i')  # makes p1_r
s.set_scope('p1_r', 'register')
j0_i_o, j0_i_i = s.split('j0_i', 4)
s.unroll('j0_i_o')
s.vectorize('j0_i_i')
j0_i_r_o, j0_i_r_i = s.split('j0_i_r', 4)
s.unroll('j0_i_r_o')
s.vectorize('j0_i_r_i')
s.parallel('i0')

def reduce_sum_a6d7f169ff(p0: f32[16, 40], p1: out(f32[16, 1])):
    for i0 in thread(16):
        p1_r = register(f32[16])
        for j0_i_o in unroll(4):
            for j0_i_i in vector(4, lanes=4):
                s0.init: p1_r[j0_i_o * 4 + j0_i_i] = f32(0.0)
        for j0_o in serial(2):
            for j0_i_o in unroll(4):
                for j0_i_i in vector(4, lanes=4):
                    s0: p1_r[j0_i_o * 4 + j0_i_i] = addf(p1_r[j0_i_o * 4 + j0_i_i], p0[i0, j0_o * 16 + j0_i_o * 4 + j0_i_i])
        for j0_i_o in unroll(2):
            for j0_i_i in vector(4, lanes=4):
                s0: p1_r[j0_i_o * 4 + j0_i_i] = addf(p1_r[j0_i_o * 4 + j0_i_i], p0[i0, j0_i_o * 4 + j0_i_i + 32])
        s0_r.init: p1[i0, 0] = f32(0.0)
        for j0_i_r_o in unroll(4):
            for j0_i_r_i in vector(4, lanes=4):
                s0_r: p1[i0, 0] = addf(p1[i0, 0], p1_r[j0_i_r_o * 4 + j0_i_r_i])
