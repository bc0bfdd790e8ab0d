// A depthwise 3x3 convolution: channels are the lanes.
// CONSTANT w f32 16x1x3x3
func.func @main(%x: tensor<1x6x6x16xf32>) -> tensor<1x6x6x16xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<16x1x3x3xf32>
  %0 = "tw.conv"(%x, %w) {groups = 16, strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x6x6x16xf32>, tensor<16x1x3x3xf32>) -> tensor<1x6x6x16xf32>
  return %0 : tensor<1x6x6x16xf32>
}

// LEVEL 3: zen4 avx2 neon
func.func private @conv_3191436314(%arg0: tensor<1x6x6x16xf32>) -> tensor<1x8x8x16xf32> {
  %cst = arith.constant 0.000000e+00 : f32
  %padded = tensor.pad %arg0 low[0, 1, 1, 0] high[0, 1, 1, 0] {
  ^bb0(%arg1: index, %arg2: index, %arg3: index, %arg4: index):
    tensor.yield %cst : f32
  } {tw.op = "conv"} : tensor<1x6x6x16xf32> to tensor<1x8x8x16xf32>
  return %padded : tensor<1x8x8x16xf32>
}

func.func private @conv_82acca7256(%arg0: tensor<1x8x8x16xf32>, %arg1: tensor<3x3x16xf32> {tw.constant}) -> tensor<1x6x6x16xf32> {
  %cst = arith.constant 0.000000e+00 : f32
  %0 = tensor.empty() : tensor<1x6x6x16xf32>
  %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<1x6x6x16xf32>) -> tensor<1x6x6x16xf32>
  %2 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2, d3, d4, d5) -> (d0, d1 + d4, d2 + d5, d3)>, affine_map<(d0, d1, d2, d3, d4, d5) -> (d4, d5, d3)>, affine_map<(d0, d1, d2, d3, d4, d5) -> (d0, d1, d2, d3)>], iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction", "reduction"]} ins(%arg0, %arg1 : tensor<1x8x8x16xf32>, tensor<3x3x16xf32>) outs(%1 : tensor<1x6x6x16xf32>) attrs =  {tw.op = "conv"} {
  ^bb0(%in: f32, %in_0: f32, %out: f32):
    %3 = arith.mulf %in, %in_0 : f32
    %4 = arith.addf %out, %3 : f32
    linalg.yield %4 : f32
  } -> tensor<1x6x6x16xf32>
  return %2 : tensor<1x6x6x16xf32>
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
l2_o, l2_i = s.split('l2', 16)
s.vectorize('l2_i')
j2_l2_o = s.fuse('j2', 'l2_o')
s.parallel('j2_l2_o')
l3_o, l3_i = s.split('l3', 16)
s.vectorize('l3_i')
j3_l3_o = s.fuse('j3', 'l3_o')
s.parallel('j3_l3_o')
k4_l4 = s.fuse('k4', 'l4')
k4_l4_o, k4_l4_i = s.split('k4_l4', 16)
s.vectorize('k4_l4_i')
j4_k4_l4_o = s.fuse('j4', 'k4_l4_o')
s.parallel('j4_k4_l4_o')

def conv_3191436314(p0: f32[1, 6, 6, 16], p1: out(f32[1, 8, 8, 16])):
    for k0_l0_o in thread(8):
        for k0_l0_i in vector(16, lanes=16):
            s0: p1[0, 0, k0_l0_o, k0_l0_i] = f32(0.0)
    for k1_l1_o in thread(8):
        for k1_l1_i in vector(16, lanes=16):
            s1: p1[0, 7, k1_l1_o, k1_l1_i] = f32(0.0)
    for j2_l2_o in thread(6):
        for l2_i in vector(16, lanes=16):
            s2: p1[0, j2_l2_o + 1, 0, l2_i] = f32(0.0)
    for j3_l3_o in thread(6):
        for l3_i in vector(16, lanes=16):
            s3: p1[0, j3_l3_o + 1, 7, l3_i] = f32(0.0)
    for j4_k4_l4_o in thread(36):
        for k4_l4_i in vector(16, lanes=16):
            s4: p1[0, j4_k4_l4_o // 6 + 1, j4_k4_l4_o % 6 + 1, k4_l4_i] = p0[0, j4_k4_l4_o // 6, j4_k4_l4_o % 6, k4_l4_i]

# rule: depthwise
# loops: j0, k0, l0, m0, n0
# blocks: s0
# buffers: p0, p1, p2
s0_w = s.cache_write('s0')  # makes p2_c
l0_o, l0_i = s.split('l0', 16)
k0_o, k0_i = s.split('k0', 6)
j0_o, j0_i = s.split('j0', 1)
s.reorder('l0_o', 'j0_o', 'k0_o', 'j0_i', 'm0', 'n0', 'k0_i', 'l0_i')
s.pack('p1', ((), (), (16,)), (2, 0, 1, 3))
l0_o_j0_o = s.fuse('l0_o', 'j0_o')
l0_o_j0_o_k0_o = s.fuse('l0_o_j0_o', 'k0_o')
p_p2_c_a, q_p2_c_a = s.reverse_compute_at('s0_w', 'j0_i')
s.set_scope('p2_c', 'register')
s.unroll('k0_i')
l0_i_o, l0_i_i = s.split('l0_i', 16)
s.unroll('l0_i_o')
s.vectorize('l0_i_i')
s.unroll('p_p2_c_a')
q_p2_c_a_o, q_p2_c_a_i = s.split('q_p2_c_a', 16)
s.unroll('q_p2_c_a_o')
s.vectorize('q_p2_c_a_i')
s.unroll('j0_i')
s.unroll('n0')
s.unroll('m0')
s.parallel('l0_o_j0_o_k0_o')

def conv_82acca7256(
    p0: f32[1, 8, 8, 16],
    p1: packed(f32[1, 3, 3, 16], splits=((), (), (16,)), order=(2, 0, 1, 3)),
    p2: out(f32[1, 6, 6, 16]),
):
    for l0_o_j0_o_k0_o in thread(6):
        p2_c = register(f32[1, 1, 6, 16])
        for k0_i in unroll(6):
            for l0_i_i in vector(16, lanes=16):
                s0.init: p2_c[0, 0, k0_i, l0_i_i] = f32(0.0)
        for m0 in unroll(3):
            for n0 in unroll(3):
                for k0_i in unroll(6):
                    for l0_i_i in vector(16, lanes=16):
                        s0: p2_c[0, 0, k0_i, l0_i_i] = addf(p2_c[0, 0, k0_i, l0_i_i], mulf(p0[0, l0_o_j0_o_k0_o + m0, k0_i + n0, l0_i_i], p1[0, m0, n0, l0_i_i]))
        for p_p2_c_a in unroll(6):
            for q_p2_c_a_i in vector(16, lanes=16):
                s0_w: p2[0, l0_o_j0_o_k0_o, p_p2_c_a, q_p2_c_a_i] = p2_c[0, 0, p_p2_c_a, q_p2_c_a_i]

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
l2_o, l2_i = s.split('l2', 8)
s.vectorize('l2_i')
j2_l2_o = s.fuse('j2', 'l2_o')
s.parallel('j2_l2_o')
l3_o, l3_i = s.split('l3', 8)
s.vectorize('l3_i')
j3_l3_o = s.fuse('j3', 'l3_o')
s.parallel('j3_l3_o')
k4_l4 = s.fuse('k4', 'l4')
k4_l4_o, k4_l4_i = s.split('k4_l4', 8)
s.vectorize('k4_l4_i')
j4_k4_l4_o = s.fuse('j4', 'k4_l4_o')
s.parallel('j4_k4_l4_o')

def conv_3191436314(p0: f32[1, 6, 6, 16], p1: out(f32[1, 8, 8, 16])):
    for k0_l0_o in thread(16):
        for k0_l0_i in vector(8, lanes=8):
            s0: p1[0, 0, k0_l0_o // 2, k0_l0_o % 2 * 8 + k0_l0_i] = f32(0.0)
    for k1_l1_o in thread(16):
        for k1_l1_i in vector(8, lanes=8):
            s1: p1[0, 7, k1_l1_o // 2, k1_l1_o % 2 * 8 + k1_l1_i] = f32(0.0)
    for j2_l2_o in thread(12):
        for l2_i in vector(8, lanes=8):
            s2: p1[0, j2_l2_o // 2 + 1, 0, j2_l2_o % 2 * 8 + l2_i] = f32(0.0)
    for j3_l3_o in thread(12):
        for l3_i in vector(8, lanes=8):
            s3: p1[0, j3_l3_o // 2 + 1, 7, j3_l3_o % 2 * 8 + l3_i] = f32(0.0)
    for j4_k4_l4_o in thread(72):
        for k4_l4_i in vector(8, lanes=8):
            s4: p1[0, j4_k4_l4_o // 12 + 1, j4_k4_l4_o % 12 // 2 + 1, j4_k4_l4_o % 12 % 2 * 8 + k4_l4_i] = p0[0, j4_k4_l4_o // 12, j4_k4_l4_o % 12 // 2, j4_k4_l4_o % 12 % 2 * 8 + k4_l4_i]

# rule: depthwise
# loops: j0, k0, l0, m0, n0
# blocks: s0
# buffers: p0, p1, p2
s0_w = s.cache_write('s0')  # makes p2_c
l0_o, l0_i = s.split('l0', 16)
k0_o, k0_i = s.split('k0', 3)
j0_o, j0_i = s.split('j0', 1)
s.reorder('l0_o', 'j0_o', 'k0_o', 'j0_i', 'm0', 'n0', 'k0_i', 'l0_i')
s.pack('p1', ((), (), (16,)), (2, 0, 1, 3))
l0_o_j0_o = s.fuse('l0_o', 'j0_o')
l0_o_j0_o_k0_o = s.fuse('l0_o_j0_o', 'k0_o')
p_p2_c_a, q_p2_c_a = s.reverse_compute_at('s0_w', 'j0_i')
s.set_scope('p2_c', 'register')
s.unroll('k0_i')
l0_i_o, l0_i_i = s.split('l0_i', 8)
s.unroll('l0_i_o')
s.vectorize('l0_i_i')
s.unroll('p_p2_c_a')
q_p2_c_a_o, q_p2_c_a_i = s.split('q_p2_c_a', 8)
s.unroll('q_p2_c_a_o')
s.vectorize('q_p2_c_a_i')
s.unroll('j0_i')
s.unroll('n0')
s.unroll('m0')
s.parallel('l0_o_j0_o_k0_o')

def conv_82acca7256(
    p0: f32[1, 8, 8, 16],
    p1: packed(f32[1, 3, 3, 16], splits=((), (), (16,)), order=(2, 0, 1, 3)),
    p2: out(f32[1, 6, 6, 16]),
):
    for l0_o_j0_o_k0_o in thread(12):
        p2_c = register(f32[1, 1, 3, 16])
        for k0_i in unroll(3):
            for l0_i_o in unroll(2):
                for l0_i_i in vector(8, lanes=8):
                    s0.init: p2_c[0, 0, k0_i, l0_i_o * 8 + l0_i_i] = f32(0.0)
        for m0 in unroll(3):
            for n0 in unroll(3):
                for k0_i in unroll(3):
                    for l0_i_o in unroll(2):
                        for l0_i_i in vector(8, lanes=8):
                            s0: p2_c[0, 0, k0_i, l0_i_o * 8 + l0_i_i] = addf(p2_c[0, 0, k0_i, l0_i_o * 8 + l0_i_i], mulf(p0[0, l0_o_j0_o_k0_o // 2 + m0, l0_o_j0_o_k0_o % 2 * 3 + k0_i + n0, l0_i_o * 8 + l0_i_i], p1[0, m0, n0, l0_i_o * 8 + l0_i_i]))
        for p_p2_c_a in unroll(3):
            for q_p2_c_a_o in unroll(2):
                for q_p2_c_a_i in vector(8, lanes=8):
                    s0_w: p2[0, l0_o_j0_o_k0_o // 2, l0_o_j0_o_k0_o % 2 * 3 + p_p2_c_a, q_p2_c_a_o * 8 + q_p2_c_a_i] = p2_c[0, 0, p_p2_c_a, q_p2_c_a_o * 8 + q_p2_c_a_i]

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
l2_o, l2_i = s.split('l2', 4)
s.vectorize('l2_i')
j2_l2_o = s.fuse('j2', 'l2_o')
s.parallel('j2_l2_o')
l3_o, l3_i = s.split('l3', 4)
s.vectorize('l3_i')
j3_l3_o = s.fuse('j3', 'l3_o')
s.parallel('j3_l3_o')
k4_l4 = s.fuse('k4', 'l4')
k4_l4_o, k4_l4_i = s.split('k4_l4', 4)
s.vectorize('k4_l4_i')
j4_k4_l4_o = s.fuse('j4', 'k4_l4_o')
s.parallel('j4_k4_l4_o')

def conv_3191436314(p0: f32[1, 6, 6, 16], p1: out(f32[1, 8, 8, 16])):
    for k0_l0_o in thread(32):
        for k0_l0_i in vector(4, lanes=4):
            s0: p1[0, 0, k0_l0_o // 4, k0_l0_o % 4 * 4 + k0_l0_i] = f32(0.0)
    for k1_l1_o in thread(32):
        for k1_l1_i in vector(4, lanes=4):
            s1: p1[0, 7, k1_l1_o // 4, k1_l1_o % 4 * 4 + k1_l1_i] = f32(0.0)
    for j2_l2_o in thread(24):
        for l2_i in vector(4, lanes=4):
            s2: p1[0, j2_l2_o // 4 + 1, 0, j2_l2_o % 4 * 4 + l2_i] = f32(0.0)
    for j3_l3_o in thread(24):
        for l3_i in vector(4, lanes=4):
            s3: p1[0, j3_l3_o // 4 + 1, 7, j3_l3_o % 4 * 4 + l3_i] = f32(0.0)
    for j4_k4_l4_o in thread(144):
        for k4_l4_i in vector(4, lanes=4):
            s4: p1[0, j4_k4_l4_o // 24 + 1, j4_k4_l4_o % 24 // 4 + 1, j4_k4_l4_o % 24 % 4 * 4 + k4_l4_i] = p0[0, j4_k4_l4_o // 24, j4_k4_l4_o % 24 // 4, j4_k4_l4_o % 24 % 4 * 4 + k4_l4_i]

# rule: depthwise
# loops: j0, k0, l0, m0, n0
# blocks: s0
# buffers: p0, p1, p2
s0_w = s.cache_write('s0')  # makes p2_c
l0_o, l0_i = s.split('l0', 8)
k0_o, k0_i = s.split('k0', 6)
j0_o, j0_i = s.split('j0', 1)
s.reorder('l0_o', 'j0_o', 'k0_o', 'j0_i', 'm0', 'n0', 'k0_i', 'l0_i')
s.pack('p1', ((), (), (8,)), (2, 0, 1, 3))
l0_o_j0_o = s.fuse('l0_o', 'j0_o')
l0_o_j0_o_k0_o = s.fuse('l0_o_j0_o', 'k0_o')
p_p2_c_a, q_p2_c_a = s.reverse_compute_at('s0_w', 'j0_i')
s.set_scope('p2_c', 'register')
s.unroll('k0_i')
l0_i_o, l0_i_i = s.split('l0_i', 4)
s.unroll('l0_i_o')
s.vectorize('l0_i_i')
s.unroll('p_p2_c_a')
q_p2_c_a_o, q_p2_c_a_i = s.split('q_p2_c_a', 4)
s.unroll('q_p2_c_a_o')
s.vectorize('q_p2_c_a_i')
s.unroll('j0_i')
s.unroll('n0')
s.unroll('m0')
s.parallel('l0_o_j0_o_k0_o')

def conv_82acca7256(
    p0: f32[1, 8, 8, 16],
    p1: packed(f32[2, 3, 3, 8], splits=((), (), (8,)), order=(2, 0, 1, 3)),
    p2: out(f32[1, 6, 6, 16]),
):
    for l0_o_j0_o_k0_o in thread(12):
        p2_c = register(f32[1, 1, 6, 8])
        for k0_i in unroll(6):
            for l0_i_o in unroll(2):
                for l0_i_i in vector(4, lanes=4):
                    s0.init: p2_c[0, 0, k0_i, l0_i_o * 4 + l0_i_i] = f32(0.0)
        for m0 in unroll(3):
            for n0 in unroll(3):
                for k0_i in unroll(6):
                    for l0_i_o in unroll(2):
                        for l0_i_i in vector(4, lanes=4):
                            s0: p2_c[0, 0, k0_i, l0_i_o * 4 + l0_i_i] = addf(p2_c[0, 0, k0_i, l0_i_o * 4 + l0_i_i], mulf(p0[0, l0_o_j0_o_k0_o % 6 + m0, k0_i + n0, l0_o_j0_o_k0_o // 6 * 8 + l0_i_o * 4 + l0_i_i], p1[l0_o_j0_o_k0_o // 6, m0, n0, l0_i_o * 4 + l0_i_i]))
        for p_p2_c_a in unroll(6):
            for q_p2_c_a_o in unroll(2):
                for q_p2_c_a_i in vector(4, lanes=4):
                    s0_w: p2[0, l0_o_j0_o_k0_o % 6, p_p2_c_a, l0_o_j0_o_k0_o // 6 * 8 + q_p2_c_a_o * 4 + q_p2_c_a_i] = p2_c[0, 0, p_p2_c_a, q_p2_c_a_o * 4 + q_p2_c_a_i]
