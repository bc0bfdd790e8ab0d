// A quantized product: sums of four products of bytes by one instruction, then rounding to bytes.
// CONSTANT w i8 16x32
func.func @main(%x: tensor<4x16xi8>) -> tensor<4x32xi8> {
  %sx = "tw.constant"() {value = dense<0.05> : tensor<f32>} : () -> tensor<f32>
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<16x32xi8>
  %sw = "tw.constant"() {value = dense<0.013> : tensor<f32>} : () -> tensor<f32>
  %sy = "tw.constant"() {value = dense<0.07> : tensor<f32>} : () -> tensor<f32>
  %0 = "tw.dequantize_linear"(%x, %sx) {operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<4x16xi8>, tensor<f32>) -> tensor<4x16xf32>
  %1 = "tw.dequantize_linear"(%w, %sw) {operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<16x32xi8>, tensor<f32>) -> tensor<16x32xf32>
  %2 = "tw.matmul"(%0, %1) : (tensor<4x16xf32>, tensor<16x32xf32>) -> tensor<4x32xf32>
  %3 = "tw.quantize_linear"(%2, %sy) {to = "i8", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<4x32xf32>, tensor<f32>) -> tensor<4x32xi8>
  return %3 : tensor<4x32xi8>
}

// LEVEL 3: zen4
func.func private @flip_sign_edd33b0353(%arg0: tensor<4x16xi8>) -> tensor<4x16xi8> {
  %0 = tensor.empty() : tensor<4x16xi8>
  %1 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%arg0 : tensor<4x16xi8>) outs(%0 : tensor<4x16xi8>) attrs =  {tw.op = "flip_sign"} {
  ^bb0(%in: i8, %out: i8):
    %c-128_i8 = arith.constant -128 : i8
    %2 = arith.xori %in, %c-128_i8 : i8
    linalg.yield %2 : i8
  } -> tensor<4x16xi8>
  return %1 : tensor<4x16xi8>
}

func.func private @integer_matmul_requantize_flip_sign_ed3394763c(%arg0: tensor<4x16xi8>, %arg1: tensor<16x32xi8> {tw.constant}, %arg2: tensor<32xi32> {tw.constant}, %arg3: tensor<i32> {tw.constant}, %arg4: tensor<i32> {tw.constant}) -> tensor<4x32xi8> {
  %c0_i32 = arith.constant 0 : i32
  %0 = tensor.empty() : tensor<4x32xi32>
  %1 = linalg.fill ins(%c0_i32 : i32) outs(%0 : tensor<4x32xi32>) -> tensor<4x32xi32>
  %2 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%arg0, %arg1 : tensor<4x16xi8>, tensor<16x32xi8>) outs(%1 : tensor<4x32xi32>) attrs =  {tw.op = "integer_matmul"} {
  ^bb0(%in: i8, %in_0: i8, %out: i32):
    %7 = arith.extui %in : i8 to i32
    %8 = arith.extsi %in_0 : i8 to i32
    %9 = arith.muli %7, %8 : i32
    %10 = arith.addi %out, %9 : i32
    linalg.yield %10 : i32
  } -> tensor<4x32xi32>
  %3 = tensor.empty() : tensor<4x32xi8>
  %4 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> ()>, affine_map<(d0, d1) -> ()>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%2, %arg2, %arg3, %arg4 : tensor<4x32xi32>, tensor<32xi32>, tensor<i32>, tensor<i32>) outs(%3 : tensor<4x32xi8>) attrs =  {tw.op = "requantize"} {
  ^bb0(%in: i32, %in_0: i32, %in_1: i32, %in_2: i32, %out: i8):
    %7 = arith.addi %in, %in_0 : i32
    %low, %high = arith.mulsi_extended %7, %in_1 : i32
    %8 = arith.shrsi %high, %in_2 : i32
    %c257_i32 = arith.constant 257 : i32
    %9 = arith.addi %8, %c257_i32 : i32
    %c1_i32 = arith.constant 1 : i32
    %10 = arith.shrsi %9, %c1_i32 : i32
    %c0_i32_3 = arith.constant 0 : i32
    %11 = arith.maxsi %10, %c0_i32_3 : i32
    %c255_i32 = arith.constant 255 : i32
    %12 = arith.minsi %11, %c255_i32 : i32
    %13 = arith.trunci %12 : i32 to i8
    linalg.yield %13 : i8
  } -> tensor<4x32xi8>
  %5 = tensor.empty() : tensor<4x32xi8>
  %6 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%4 : tensor<4x32xi8>) outs(%5 : tensor<4x32xi8>) attrs =  {tw.op = "flip_sign"} {
  ^bb0(%in: i8, %out: i8):
    %c-128_i8 = arith.constant -128 : i8
    %7 = arith.xori %in, %c-128_i8 : i8
    linalg.yield %7 : i8
  } -> tensor<4x32xi8>
  return %6 : tensor<4x32xi8>
}

// LEVEL 3: avx2 neon
func.func private @integer_matmul_requantize_c084729bdb(%arg0: tensor<4x16xi8>, %arg1: tensor<16x32xi8> {tw.constant}, %arg2: tensor<i32> {tw.constant}, %arg3: tensor<i32> {tw.constant}, %arg4: tensor<i32> {tw.constant}) -> tensor<4x32xi8> {
  %c0_i32 = arith.constant 0 : i32
  %0 = tensor.empty() : tensor<4x32xi32>
  %1 = linalg.fill ins(%c0_i32 : i32) outs(%0 : tensor<4x32xi32>) -> tensor<4x32xi32>
  %2 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%arg0, %arg1 : tensor<4x16xi8>, tensor<16x32xi8>) outs(%1 : tensor<4x32xi32>) attrs =  {tw.op = "integer_matmul"} {
  ^bb0(%in: i8, %in_0: i8, %out: i32):
    %5 = arith.extsi %in : i8 to i32
    %6 = arith.extsi %in_0 : i8 to i32
    %7 = arith.muli %5, %6 : i32
    %8 = arith.addi %out, %7 : i32
    linalg.yield %8 : i32
  } -> tensor<4x32xi32>
  %3 = tensor.empty() : tensor<4x32xi8>
  %4 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> ()>, affine_map<(d0, d1) -> ()>, affine_map<(d0, d1) -> ()>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%2, %arg2, %arg3, %arg4 : tensor<4x32xi32>, tensor<i32>, tensor<i32>, tensor<i32>) outs(%3 : tensor<4x32xi8>) attrs =  {tw.op = "requantize"} {
  ^bb0(%in: i32, %in_0: i32, %in_1: i32, %in_2: i32, %out: i8):
    %5 = arith.addi %in, %in_0 : i32
    %low, %high = arith.mulsi_extended %5, %in_1 : i32
    %6 = arith.shrsi %high, %in_2 : i32
    %c1_i32 = arith.constant 1 : i32
    %7 = arith.addi %6, %c1_i32 : i32
    %c1_i32_3 = arith.constant 1 : i32
    %8 = arith.shrsi %7, %c1_i32_3 : i32
    %c-128_i32 = arith.constant -128 : i32
    %9 = arith.maxsi %8, %c-128_i32 : i32
    %c127_i32 = arith.constant 127 : i32
    %10 = arith.minsi %9, %c127_i32 : i32
    %11 = arith.trunci %10 : i32 to i8
    linalg.yield %11 : i8
  } -> tensor<4x32xi8>
  return %4 : tensor<4x32xi8>
}

// LEVEL 4: zen4
# rule: elementwise
# loops: i0, j0
# blocks: s0
# buffers: p0, p1
i0_j0 = s.fuse('i0', 'j0')
i0_j0_o, i0_j0_i = s.split('i0_j0', 16)
s.vectorize('i0_j0_i')
s.parallel('i0_j0_o')

def flip_sign_edd33b0353(p0: i8[4, 16], p1: out(i8[4, 16])):
    for i0_j0_o in thread(4):
        for i0_j0_i in vector(16, lanes=16):
            s0: p1[i0_j0_o, i0_j0_i] = xori(p0[i0_j0_o, i0_j0_i], i8(-128))

# rule: integer-contraction
# loops: i0, j0, k0, i1, j1, i2, j2
# blocks: s0, s1, s2
# buffers: p0, p1, p2, p3, p4, p5, t0, t1
s.inline('s1')
s.reindex('s2', 's0')
j0_o, j0_i = s.split('j0', 32)
i0_o, i0_i = s.split('i0', 4)
k0_o, k0_i = s.split('k0', 4)
s.reorder('j0_o', 'i0_o', 'k0_o', 'i0_i', 'j0_i', 'k0_i')
s.pack('p1', ((4,), (32,)), (2, 0, 3, 1))
s.unroll('k0_i')
s.annotate('k0_i', 'dot', 'vnni512_us')
j0_o_i0_o = s.fuse('j0_o', 'i0_o')
m_s2_a, n_s2_a = s.reverse_compute_at('s2', 'j0_o_i0_o')
s.set_scope('t0', 'register')
s.unroll('i0_i')
j0_i_o, j0_i_i = s.split('j0_i', 16)
s.unroll('j0_i_o')
s.vectorize('j0_i_i')
s.unroll('m_s2_a')
n_s2_a_o, n_s2_a_i = s.split('n_s2_a', 16)
s.unroll('n_s2_a_o')
s.vectorize('n_s2_a_i')
s.unroll('k0_o')
s.parallel('j0_o_i0_o')

def integer_matmul_requantize_flip_sign_ed3394763c(
    p0: i8[4, 16],
    p1: packed(i8[1, 4, 32, 4], splits=((4,), (32,)), order=(2, 0, 3, 1)),
    p2: i32[32],
    p3: i32[()],
    p4: i32[()],
    p5: out(i8[4, 32]),
):
    t0 = register(i32[4, 32])
    for i0_i in unroll(4):
        for j0_i_o in unroll(2):
            for j0_i_i in vector(16, lanes=16):
                s0.init: t0[i0_i, j0_i_o * 16 + j0_i_i] = i32(0)
    for k0_o in unroll(4):
        for i0_i in unroll(4):
            for j0_i_o in unroll(2):
                for j0_i_i in vector(16, lanes=16):
                    for k0_i in unroll(4, notes={'dot': 'vnni512_us'}):
                        s0: t0[i0_i, j0_i_o * 16 + j0_i_i] = addi(t0[i0_i, j0_i_o * 16 + j0_i_i], muli(extui[i32](p0[i0_i, k0_o * 4 + k0_i]), extsi[i32](p1[0, k0_o, j0_i_o * 16 + j0_i_i, k0_i])))
    for m_s2_a in unroll(4):
        for n_s2_a_o in unroll(2):
            for n_s2_a_i in vector(16, lanes=16):
                s2: p5[m_s2_a, n_s2_a_o * 16 + n_s2_a_i] = xori(trunci[i8](minsi(maxsi(shrsi(addi(shrsi(mulhsi(addi(t0[m_s2_a, n_s2_a_o * 16 + n_s2_a_i], p2[n_s2_a_o * 16 + n_s2_a_i]), p3[()]), p4[()]), i32(257)), i32(1)), i32(0)), i32(255))), i8(-128))

// LEVEL 4: avx2
# rule: contraction
# loops: i0, j0, k0, i1, j1
# blocks: s0, s1
# buffers: p0, p1, p2, p3, p4, p5, t0
s.reindex('s1', 's0')
j0_o, j0_i = s.split('j0', 32)
i0_o, i0_i = s.split('i0', 2)
s.reorder('j0_o', 'i0_o', 'k0', 'i0_i', 'j0_i')
s.pack('p1', ((), (32,)), (1, 0, 2))
j0_o_i0_o = s.fuse('j0_o', 'i0_o')
m_s1_a, n_s1_a = s.reverse_compute_at('s1', 'j0_o_i0_o')
s.set_scope('t0', 'register')
s.unroll('i0_i')
j0_i_o, j0_i_i = s.split('j0_i', 8)
s.unroll('j0_i_o')
s.vectorize('j0_i_i')
s.unroll('m_s1_a')
n_s1_a_o, n_s1_a_i = s.split('n_s1_a', 8)
s.unroll('n_s1_a_o')
s.vectorize('n_s1_a_i')
k0_o, k0_i = s.split('k0', 4)
s.unroll('k0_i')
s.parallel('j0_o_i0_o')

def integer_matmul_requantize_c084729bdb(
    p0: i8[4, 16],
    p1: packed(i8[1, 16, 32], splits=((), (32,)), order=(1, 0, 2)),
    p2: i32[()],
    p3: i32[()],
    p4: i32[()],
    p5: out(i8[4, 32]),
):
    for j0_o_i0_o in thread(2):
        t0 = register(i32[2, 32])
        for i0_i in unroll(2):
            for j0_i_o in unroll(4):
                for j0_i_i in vector(8, lanes=8):
                    s0.init: t0[i0_i, j0_i_o * 8 + j0_i_i] = i32(0)
        for k0_o in serial(4):
            for k0_i in unroll(4):
                for i0_i in unroll(2):
                    for j0_i_o in unroll(4):
                        for j0_i_i in vector(8, lanes=8):
                            s0: t0[i0_i, j0_i_o * 8 + j0_i_i] = addi(t0[i0_i, j0_i_o * 8 + j0_i_i], muli(extsi[i32](p0[j0_o_i0_o * 2 + i0_i, k0_o * 4 + k0_i]), extsi[i32](p1[0, k0_o * 4 + k0_i, j0_i_o * 8 + j0_i_i])))
        for m_s1_a in unroll(2):
            for n_s1_a_o in unroll(4):
                for n_s1_a_i in vector(8, lanes=8):
                    s1: p5[j0_o_i0_o * 2 + m_s1_a, n_s1_a_o * 8 + n_s1_a_i] = trunci[i8](minsi(maxsi(shrsi(addi(shrsi(mulhsi(addi(t0[m_s1_a, n_s1_a_o * 8 + n_s1_a_i], p2[()]), p3[()]), p4[()]), i32(1)), i32(1)), i32(-128)), i32(127)))

// LEVEL 4: neon
# rule: integer-contraction
# loops: i0, j0, k0, i1, j1
# blocks: s0, s1
# buffers: p0, p1, p2, p3, p4, p5, t0
s.reindex('s1', 's0')
j0_o, j0_i = s.split('j0', 16)
i0_o, i0_i = s.split('i0', 4)
k0_o, k0_i = s.split('k0', 4)
s.reorder('j0_o', 'i0_o', 'k0_o', 'i0_i', 'j0_i', 'k0_i')
s.pack('p1', ((4,), (16,)), (2, 0, 3, 1))
s.unroll('k0_i')
s.annotate('k0_i', 'dot', 'neon_ss')
j0_o_i0_o = s.fuse('j0_o', 'i0_o')
m_s1_a, n_s1_a = s.reverse_compute_at('s1', 'j0_o_i0_o')
s.set_scope('t0', 'register')
s.unroll('i0_i')
j0_i_o, j0_i_i = s.split('j0_i', 4)
s.unroll('j0_i_o')
s.vectorize('j0_i_i')
s.unroll('m_s1_a')
n_s1_a_o, n_s1_a_i = s.split('n_s1_a', 4)
s.unroll('n_s1_a_o')
s.vectorize('n_s1_a_i')
s.unroll('k0_o')
s.parallel('j0_o_i0_o')

def integer_matmul_requantize_c084729bdb(
    p0: i8[4, 16],
    p1: packed(i8[2, 4, 16, 4], splits=((4,), (16,)), order=(2, 0, 3, 1)),
    p2: i32[()],
    p3: i32[()],
    p4: i32[()],
    p5: out(i8[4, 32]),
):
    for j0_o_i0_o in thread(2):
        t0 = register(i32[4, 16])
        for i0_i in unroll(4):
            for j0_i_o in unroll(4):
                for j0_i_i in vector(4, lanes=4):
                    s0.init: t0[i0_i, j0_i_o * 4 + j0_i_i] = i32(0)
        for k0_o in unroll(4):
            for i0_i in unroll(4):
                for j0_i_o in unroll(4):
                    for j0_i_i in vector(4, lanes=4):
                        for k0_i in unroll(4, notes={'dot': 'neon_ss'}):
                            s0: t0[i0_i, j0_i_o * 4 + j0_i_i] = addi(t0[i0_i, j0_i_o * 4 + j0_i_i], muli(extsi[i32](p0[i0_i, k0_o * 4 + k0_i]), extsi[i32](p1[j0_o_i0_o, k0_o, j0_i_o * 4 + j0_i_i, k0_i])))
        for m_s1_a in unroll(4):
            for n_s1_a_o in unroll(4):
                for n_s1_a_i in vector(4, lanes=4):
                    s1: p5[m_s1_a, j0_o_i0_o * 16 + n_s1_a_o * 4 + n_s1_a_i] = trunci[i8](minsi(maxsi(shrsi(addi(shrsi(mulhsi(addi(t0[m_s1_a, n_s1_a_o * 4 + n_s1_a_i], p2[()]), p3[()]), p4[()]), i32(1)), i32(1)), i32(-128)), i32(127)))
