// A 3x3 convolution with bias and ReLU; the padded copy of its input is a kernel of its own.
// CONSTANT w f32 8x3x3x3
// CONSTANT b f32 8
func.func @main(%x: tensor<1x6x6x3xf32>) -> tensor<1x6x6x8xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<8x3x3x3xf32>
  %b = "tw.constant"() {symbol = "b"} : () -> tensor<8xf32>
  %0 = "tw.conv"(%x, %w, %b) {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<1x6x6x3xf32>, tensor<8x3x3x3xf32>, tensor<8xf32>) -> tensor<1x6x6x8xf32>
  %1 = "tw.relu"(%0) : (tensor<1x6x6x8xf32>) -> tensor<1x6x6x8xf32>
  return %1 : tensor<1x6x6x8xf32>
}

// LEVEL 3: zen4 avx2 neon
func.func private @conv_7516ed387d(%arg0: tensor<1x6x6x3xf32>) -> tensor<1x8x8x3xf32> {
  %cst = arith.constant 0.000000e+00 : f32
  %padded = tensor.pad %arg0 low[0, 1, 1, 0] high[0, 1, 1, 0] {
  ^bb0(%arg1: index, %arg2: index, %arg3: index, %arg4: index):
    tensor.yield %cst : f32
  } {tw.op = "conv"} : tensor<1x6x6x3xf32> to tensor<1x8x8x3xf32>
  return %padded : tensor<1x8x8x3xf32>
}

func.func private @conv_relu_1ae8f40c82(%arg0: tensor<1x8x8x3xf32>, %arg1: tensor<3x3x3x8xf32> {tw.constant}, %arg2: tensor<8xf32> {tw.constant}) -> tensor<1x6x6x8xf32> {
  %cst = arith.constant 0.000000e+00 : f32
  %0 = tensor.empty() : tensor<1x6x6x8xf32>
  %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<1x6x6x8xf32>) -> tensor<1x6x6x8xf32>
  %2 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d0, d1 + d4, d2 + d5, d6)>, affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d4, d5, d6, d3)>, affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d0, d1, d2, d3)>], iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction", "reduction", "reduction"]} ins(%arg0, %arg1 : tensor<1x8x8x3xf32>, tensor<3x3x3x8xf32>) outs(%1 : tensor<1x6x6x8xf32>) attrs =  {tw.op = "conv"} {
  ^bb0(%in: f32, %in_0: f32, %out: f32):
    %7 = arith.mulf %in, %in_0 : f32
    %8 = arith.addf %out, %7 : f32
    linalg.yield %8 : f32
  } -> tensor<1x6x6x8xf32>
  %3 = tensor.empty() : tensor<1x6x6x8xf32>
  %4 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>, affine_map<(d0, d1, d2, d3) -> (d3)>, affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%2, %arg2 : tensor<1x6x6x8xf32>, tensor<8xf32>) outs(%3 : tensor<1x6x6x8xf32>) attrs =  {tw.op = "conv"} {
  ^bb0(%in: f32, %in_0: f32, %out: f32):
    %7 = arith.addf %in, %in_0 : f32
    linalg.yield %7 : f32
  } -> tensor<1x6x6x8xf32>
  %5 = tensor.empty() : tensor<1x6x6x8xf32>
  %6 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>, affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%4 : tensor<1x6x6x8xf32>) outs(%5 : tensor<1x6x6x8xf32>) attrs =  {tw.op = "relu"} {
  ^bb0(%in: f32, %out: f32):
    %cst_0 = arith.constant 0.000000e+00 : f32
    %7 = arith.maximumf %in, %cst_0 : f32
    linalg.yield %7 : f32
  } -> tensor<1x6x6x8xf32>
  return %6 : tensor<1x6x6x8xf32>
}

// LEVEL 4: zen4
# rule: elementwise
# loops: k0, l0, k1, l1, j2, l2, j3, l3, j4, k4, l4
# blocks: s0, s1, s2, s3, s4
# buffers: p0, p1
k0_l0 = s.fuse('k0', 'l0')
k0_l0_o, k0_l0_i = s.split('k0_l0', 16)
s.vectorize('k0_l0_i')
s.parallel('k0_l0_o')
k1_l1 = s.fuse('k1', 'l1')
k1_l1_o, k1_l1_i = s.split('k1_l1', 16)
s.vectorize('k1_l1_i')
s.parallel('k1_l1_o')
s.vectorize('l2')
s.parallel('j2')
s.vectorize('l3')
s.parallel('j3')
k4_l4 = s.fuse('k4', 'l4')
k4_l4_o, k4_l4_i = s.split('k4_l4', 16)
s.vectorize('k4_l4_i')
j4_k4_l4_o = s.fuse('j4', 'k4_l4_o')
s.parallel('j4_k4_l4_o')

def conv_7516ed387d(p0: f32[1, 6, 6, 3], p1: out(f32[1, 8, 8, 3])):
    for k0_l0_o in thread(2):
        if k0_l0_o < 1:
            for k0_l0_i in vector(16, lanes=16):
                s0: p1[0, 0, (k0_l0_o * 16 + k0_l0_i) // 3, (k0_l0_o * 16 + k0_l0_i) % 3] = f32(0.0)
        else:
            for k0_l0_i in vector(8, lanes=16):
                s0: p1[0, 0, (k0_l0_i + 1) // 3 + 5, (k0_l0_i + 1) % 3] = f32(0.0)
    for k1_l1_o in thread(2):
        if k1_l1_o < 1:
            for k1_l1_i in vector(16, lanes=16):
                s1: p1[0, 7, (k1_l1_o * 16 + k1_l1_i) // 3, (k1_l1_o * 16 + k1_l1_i) % 3] = f32(0.0)
        else:
            for k1_l1_i in vector(8, lanes=16):
                s1: p1[0, 7, (k1_l1_i + 1) // 3 + 5, (k1_l1_i + 1) % 3] = f32(0.0)
    for j2 in thread(6):
        for l2 in vector(3, lanes=4):
            s2: p1[0, j2 + 1, 0, l2] = f32(0.0)
    for j3 in thread(6):
        for l3 in vector(3, lanes=4):
            s3: p1[0, j3 + 1, 7, l3] = f32(0.0)
    for j4_k4_l4_o in thread(12):
        if j4_k4_l4_o % 2 < 1:
            for k4_l4_i in vector(16, lanes=16):
                s4: p1[0, j4_k4_l4_o // 2 + 1, (j4_k4_l4_o % 2 * 16 + k4_l4_i) // 3 + 1, (j4_k4_l4_o % 2 * 16 + k4_l4_i) % 3] = p0[0, j4_k4_l4_o // 2, (j4_k4_l4_o % 2 * 16 + k4_l4_i) // 3, (j4_k4_l4_o % 2 * 16 + k4_l4_i) % 3]
        else:
            for k4_l4_i in vector(2, lanes=16):
                s4: p1[0, j4_k4_l4_o // 2 + 1, 6, k4_l4_i + 1] = p0[0, j4_k4_l4_o // 2, 5, k4_l4_i + 1]

# rule: contraction
# loops: j0, k0, l0, m0, n0, p0, j1, k1, l1, j2, k2, l2
# blocks: s0, s1, s2
# buffers: p0, p1, p2, p3, t0, t1
s.inline('s1')
s.reindex('s2', 's0')
l0_o, l0_i = s.split('l0', 8)
k0_o, k0_i = s.split('k0', 6)
j0_o, j0_i = s.split('j0', 2)
s.reorder('l0_o', 'j0_o', 'k0_o', 'm0', 'n0', 'p0', 'j0_i', 'k0_i', 'l0_i')
s.pack('p1', ((), (), (), (8,)), (3, 0, 1, 2, 4))
l0_o_j0_o = s.fuse('l0_o', 'j0_o')
l0_o_j0_o_k0_o = s.fuse('l0_o_j0_o', 'k0_o')
n_s2_a, p_s2_a, q_s2_a = s.reverse_compute_at('s2', 'l0_o_j0_o_k0_o')
s.set_scope('t0', 'register')
s.unroll('j0_i')
s.unroll('k0_i')
l0_i_o, l0_i_i = s.split('l0_i', 8)
s.unroll('l0_i_o')
s.vectorize('l0_i_i')
s.unroll('n_s2_a')
s.unroll('p_s2_a')
q_s2_a_o, q_s2_a_i = s.split('q_s2_a', 8)
s.unroll('q_s2_a_o')
s.vectorize('q_s2_a_i')
s.unroll('p0')
s.unroll('n0')
s.unroll('m0')
s.parallel('l0_o_j0_o_k0_o')

def conv_relu_1ae8f40c82(
    p0: f32[1, 8, 8, 3],
    p1: packed(f32[1, 3, 3, 3, 8], splits=((), (), (), (8,)), order=(3, 0, 1, 2, 4)),
    p2: f32[8],
    p3: out(f32[1, 6, 6, 8]),
):
    for l0_o_j0_o_k0_o in thread(3):
        t0 = register(f32[1, 2, 6, 8])
        for j0_i in unroll(2):
            for k0_i in unroll(6):
                for l0_i_i in vector(8, lanes=8):
                    s0.init: t0[0, j0_i, k0_i, l0_i_i] = f32(0.0)
        for m0 in unroll(3):
            for n0 in unroll(3):
                for p0 in unroll(3):
                    for j0_i in unroll(2):
                        for k0_i in unroll(6):
                            for l0_i_i in vector(8, lanes=8):
                                s0: t0[0, j0_i, k0_i, l0_i_i] = addf(t0[0, j0_i, k0_i, l0_i_i], mulf(p0[0, l0_o_j0_o_k0_o * 2 + j0_i + m0, k0_i + n0, p0], p1[0, m0, n0, p0, l0_i_i]))
        for n_s2_a in unroll(2):
            for p_s2_a in unroll(6):
                for q_s2_a_i in vector(8, lanes=8):
                    s2: p3[0, l0_o_j0_o_k0_o * 2 + n_s2_a, p_s2_a, q_s2_a_i] = maximumf(addf(t0[0, n_s2_a, p_s2_a, q_s2_a_i], p2[q_s2_a_i]), f32(0.0))

// LEVEL 4: avx2
# rule: elementwise
# loops: k0, l0, k1, l1, j2, l2, j3, l3, j4, k4, l4
# blocks: s0, s1, s2, s3, s4
# buffers: p0, p1
k0_l0 = s.fuse('k0', 'l0')
k0_l0_o, k0_l0_i = s.split('k0_l0', 8)
s.vectorize('k0_l0_i')
s.parallel('k0_l0_o')
k1_l1 = s.fuse('k1', 'l1')
k1_l1_o, k1_l1_i = s.split('k1_l1', 8)
s.vectorize('k1_l1_i')
s.parallel('k1_l1_o')
s.vectorize('l2')
s.parallel('j2')
s.vectorize('l3')
s.parallel('j3')
k4_l4 = s.fuse('k4', 'l4')
k4_l4_o, k4_l4_i = s.split('k4_l4', 8)
s.vectorize('k4_l4_i')
j4_k4_l4_o = s.fuse('j4', 'k4_l4_o')
s.parallel('j4_k4_l4_o')

def conv_7516ed387d(p0: f32[1, 6, 6, 3], p1: out(f32[1, 8, 8, 3])):
    for k0_l0_o in thread(3):
        for k0_l0_i in vector(8, lanes=8):
            s0: p1[0, 0, (k0_l0_o * 8 + k0_l0_i) // 3, (k0_l0_o * 8 + k0_l0_i) % 3] = f32(0.0)
    for k1_l1_o in thread(3):
        for k1_l1_i in vector(8, lanes=8):
            s1: p1[0, 7, (k1_l1_o * 8 + k1_l1_i) // 3, (k1_l1_o * 8 + k1_l1_i) % 3] = f32(0.0)
    for j2 in thread(6):
        for l2 in vector(3, lanes=4):
            s2: p1[0, j2 + 1, 0, l2] = f32(0.0)
    for j3 in thread(6):
        for l3 in vector(3, lanes=4):
            s3: p1[0, j3 + 1, 7, l3] = f32(0.0)
    for j4_k4_l4_o in thread(18):
        if j4_k4_l4_o % 3 < 2:
            for k4_l4_i in vector(8, lanes=8):
                s4: p1[0, j4_k4_l4_o // 3 + 1, (j4_k4_l4_o % 3 * 8 + k4_l4_i) // 3 + 1, (j4_k4_l4_o % 3 * 8 + k4_l4_i) % 3] = p0[0, j4_k4_l4_o // 3, (j4_k4_l4_o % 3 * 8 + k4_l4_i) // 3, (j4_k4_l4_o % 3 * 8 + k4_l4_i) % 3]
        else:
            for k4_l4_i in vector(2, lanes=8):
                s4: p1[0, j4_k4_l4_o // 3 + 1, 6, k4_l4_i + 1] = p0[0, j4_k4_l4_o // 3, 5, k4_l4_i + 1]

# rule: contraction
# loops: j0, k0, l0, m0, n0, p0, j1, k1, l1, j2, k2, l2
# blocks: s0, s1, s2
# buffers: p0, p1, p2, p3, t0, t1
s.inline('s1')
s.reindex('s2', 's0')
l0_o, l0_i = s.split('l0', 8)
k0_o, k0_i = s.split('k0', 6)
j0_o, j0_i = s.split('j0', 2)
s.reorder('l0_o', 'j0_o', 'k0_o', 'm0', 'n0', 'p0', 'j0_i', 'k0_i', 'l0_i')
s.pack('p1', ((), (), (), (8,)), (3, 0, 1, 2, 4))
l0_o_j0_o = s.fuse('l0_o', 'j0_o')
l0_o_j0_o_k0_o = s.fuse('l0_o_j0_o', 'k0_o')
n_s2_a, p_s2_a, q_s2_a = s.reverse_compute_at('s2', 'l0_o_j0_o_k0_o')
s.set_scope('t0', 'register')
s.unroll('j0_i')
s.unroll('k0_i')
l0_i_o, l0_i_i = s.split('l0_i', 8)
s.unroll('l0_i_o')
s.vectorize('l0_i_i')
s.unroll('n_s2_a')
s.unroll('p_s2_a')
q_s2_a_o, q_s2_a_i = s.split('q_s2_a', 8)
s.unroll('q_s2_a_o')
s.vectorize('q_s2_a_i')
s.unroll('p0')
s.unroll('n0')
s.unroll('m0')
s.parallel('l0_o_j0_o_k0_o')

def conv_relu_1ae8f40c82(
    p0: f32[1, 8, 8, 3],
    p1: packed(f32[1, 3, 3, 3, 8], splits=((), (), (), (8,)), order=(3, 0, 1, 2, 4)),
    p2: f32[8],
    p3: out(f32[1, 6, 6, 8]),
):
    for l0_o_j0_o_k0_o in thread(3):
        t0 = register(f32[1, 2, 6, 8])
        for j0_i in unroll(2):
            for k0_i in unroll(6):
                for l0_i_i in vector(8, lanes=8):
                    s0.init: t0[0, j0_i, k0_i, l0_i_i] = f32(0.0)
        for m0 in unroll(3):
            for n0 in unroll(3):
                for p0 in unroll(3):
                    for j0_i in unroll(2):
                        for k0_i in unroll(6):
                            for l0_i_i in vector(8, lanes=8):
                                s0: t0[0, j0_i, k0_i, l0_i_i] = addf(t0[0, j0_i, k0_i, l0_i_i], mulf(p0[0, l0_o_j0_o_k0_o * 2 + j0_i + m0, k0_i + n0, p0], p1[0, m0, n0, p0, l0_i_i]))
        for n_s2_a in unroll(2):
            for p_s2_a in unroll(6):
                for q_s2_a_i in vector(8, lanes=8):
                    s2: p3[0, l0_o_j0_o_k0_o * 2 + n_s2_a, p_s2_a, q_s2_a_i] = maximumf(addf(t0[0, n_s2_a, p_s2_a, q_s2_a_i], p2[q_s2_a_i]), f32(0.0))

// LEVEL 4: neon
# rule: elementwise
# loops: k0, l0, k1, l1, j2, l2, j3, l3, j4, k4, l4
# blocks: s0, s1, s2, s3, s4
# buffers: p0, p1
k0_l0 = s.fuse('k0', 'l0')
k0_l0_o, k0_l0_i = s.split('k0_l0', 4)
s.vectorize('k0_l0_i')
s.parallel('k0_l0_o')
k1_l1 = s.fuse('k1', 'l1')
k1_l1_o, k1_l1_i = s.split('k1_l1', 4)
s.vectorize('k1_l1_i')
s.parallel('k1_l1_o')
s.vectorize('l2')
s.parallel('j2')
s.vectorize('l3')
s.parallel('j3')
k4_l4 = s.fuse('k4', 'l4')
k4_l4_o, k4_l4_i = s.split('k4_l4', 4)
s.vectorize('k4_l4_i')
j4_k4_l4_o = s.fuse('j4', 'k4_l4_o')
s.parallel('j4_k4_l4_o')

def conv_7516ed387d(p0: f32[1, 6, 6, 3], p1: out(f32[1, 8, 8, 3])):
    for k0_l0_o in thread(6):
        for k0_l0_i in vector(4, lanes=4):
            s0: p1[0, 0, (k0_l0_o * 4 + k0_l0_i) // 3, (k0_l0_o * 4 + k0_l0_i) % 3] = f32(0.0)
    for k1_l1_o in thread(6):
        for k1_l1_i in vector(4, lanes=4):
            s1: p1[0, 7, (k1_l1_o * 4 + k1_l1_i) // 3, (k1_l1_o * 4 + k1_l1_i) % 3] = f32(0.0)
    for j2 in thread(6):
        for l2 in vector(3, lanes=4):
            s2: p1[0, j2 + 1, 0, l2] = f32(0.0)
    for j3 in thread(6):
        for l3 in vector(3, lanes=4):
            s3: p1[0, j3 + 1, 7, l3] = f32(0.0)
    for j4_k4_l4_o in thread(30):
        if j4_k4_l4_o % 5 < 4:
            for k4_l4_i in vector(4, lanes=4):
                s4: p1[0, j4_k4_l4_o // 5 + 1, (j4_k4_l4_o % 5 * 4 + k4_l4_i) // 3 + 1, (j4_k4_l4_o % 5 * 4 + k4_l4_i) % 3] = p0[0, j4_k4_l4_o // 5, (j4_k4_l4_o % 5 * 4 + k4_l4_i) // 3, (j4_k4_l4_o % 5 * 4 + k4_l4_i) % 3]
        else:
            for k4_l4_i in vector(2, lanes=4):
                s4: p1[0, j4_k4_l4_o // 5 + 1, 6, k4_l4_i + 1] = p0[0, j4_k4_l4_o // 5, 5, k4_l4_i + 1]

# rule: contraction
# loops: j0, k0, l0, m0, n0, p0, j1, k1, l1, j2, k2, l2
# blocks: s0, s1, s2
# buffers: p0, p1, p2, p3, t0, t1
s.inline('s1')
s.reindex('s2', 's0')
l0_o, l0_i = s.split('l0', 8)
k0_o, k0_i = s.split('k0', 6)
s.reorder('l0_o', 'j0', 'k0_o', 'm0', 'n0', 'p0', 'k0_i', 'l0_i')
s.pack('p1', ((), (), (), (8,)), (3, 0, 1, 2, 4))
l0_o_j0 = s.fuse('l0_o', 'j0')
l0_o_j0_k0_o = s.fuse('l0_o_j0', 'k0_o')
p_s2_a, q_s2_a = s.reverse_compute_at('s2', 'l0_o_j0_k0_o')
s.set_scope('t0', 'register')
s.unroll('k0_i')
l0_i_o, l0_i_i = s.split('l0_i', 4)
s.unroll('l0_i_o')
s.vectorize('l0_i_i')
s.unroll('p_s2_a')
q_s2_a_o, q_s2_a_i = s.split('q_s2_a', 4)
s.unroll('q_s2_a_o')
s.vectorize('q_s2_a_i')
s.unroll('p0')
s.unroll('n0')
s.unroll('m0')
s.parallel('l0_o_j0_k0_o')

def conv_relu_1ae8f40c82(
    p0: f32[1, 8, 8, 3],
    p1: packed(f32[1, 3, 3, 3, 8], splits=((), (), (), (8,)), order=(3, 0, 1, 2, 4)),
    p2: f32[8],
    p3: out(f32[1, 6, 6, 8]),
):
    for l0_o_j0_k0_o in thread(6):
        t0 = register(f32[1, 1, 6, 8])
        for k0_i in unroll(6):
            for l0_i_o in unroll(2):
                for l0_i_i in vector(4, lanes=4):
                    s0.init: t0[0, 0, k0_i, l0_i_o * 4 + l0_i_i] = f32(0.0)
        for m0 in unroll(3):
            for n0 in unroll(3):
                for p0 in unroll(3):
                    for k0_i in unroll(6):
                        for l0_i_o in unroll(2):
                            for l0_i_i in vector(4, lanes=4):
                                s0: t0[0, 0, k0_i, l0_i_o * 4 + l0_i_i] = addf(t0[0, 0, k0_i, l0_i_o * 4 + l0_i_i], mulf(p0[0, l0_o_j0_k0_o + m0, k0_i + n0, p0], p1[0, m0, n0, p0, l0_i_o * 4 + l0_i_i]))
        for p_s2_a in unroll(6):
            for q_s2_a_o in unroll(2):
                for q_s2_a_i in vector(4, lanes=4):
                    s2: p3[0, l0_o_j0_k0_o, p_s2_a, q_s2_a_o * 4 + q_s2_a_i] = maximumf(addf(t0[0, 0, p_s2_a, q_s2_a_o * 4 + q_s2_a_i], p2[q_s2_a_o * 4 + q_s2_a_i]), f32(0.0))
