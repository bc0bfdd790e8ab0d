// Layer normalization: mean and variance of a row, then the row itself, while it is in the cache.
// CONSTANT g f32 24
// CONSTANT b f32 24
func.func @main(%x: tensor<6x24xf32>) -> tensor<6x24xf32> {
  %g = "tw.constant"() {symbol = "g"} : () -> tensor<24xf32>
  %b = "tw.constant"() {symbol = "b"} : () -> tensor<24xf32>
  %0 = "tw.layer_norm"(%x, %g, %b) {axis = 1, epsilon = 1.0e-5, operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<6x24xf32>, tensor<24xf32>, tensor<24xf32>) -> tensor<6x24xf32>
  return %0 : tensor<6x24xf32>
}

// LEVEL 3: zen4 avx2 neon
func.func private @layer_norm_1943f6fb7c(%arg0: tensor<6x24xf32>, %arg1: tensor<24xf32> {tw.constant}) -> tensor<6x24xf32> {
  %cst = arith.constant 0.000000e+00 : f32
  %0 = tensor.empty() : tensor<6x1xf32>
  %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<6x1xf32>) -> tensor<6x1xf32>
  %2 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, 0)>], iterator_types = ["parallel", "reduction"]} ins(%arg0 : tensor<6x24xf32>) outs(%1 : tensor<6x1xf32>) attrs =  {tw.op = "layer_norm"} {
  ^bb0(%in: f32, %out: f32):
    %16 = arith.addf %in, %out : f32
    linalg.yield %16 : f32
  } -> tensor<6x1xf32>
  %3 = tensor.empty() : tensor<6x1xf32>
  %4 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%2 : tensor<6x1xf32>) outs(%3 : tensor<6x1xf32>) attrs =  {tw.op = "layer_norm"} {
  ^bb0(%in: f32, %out: f32):
    %cst_1 = arith.constant 0.0416666679 : f32
    %16 = arith.mulf %in, %cst_1 : f32
    linalg.yield %16 : f32
  } -> tensor<6x1xf32>
  %5 = tensor.empty() : tensor<6x24xf32>
  %6 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, 0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%arg0, %4 : tensor<6x24xf32>, tensor<6x1xf32>) outs(%5 : tensor<6x24xf32>) attrs =  {tw.op = "layer_norm"} {
  ^bb0(%in: f32, %in_1: f32, %out: f32):
    %16 = arith.subf %in, %in_1 : f32
    linalg.yield %16 : f32
  } -> tensor<6x24xf32>
  %cst_0 = arith.constant 0.000000e+00 : f32
  %7 = tensor.empty() : tensor<6x1xf32>
  %8 = linalg.fill ins(%cst_0 : f32) outs(%7 : tensor<6x1xf32>) -> tensor<6x1xf32>
  %9 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, 0)>], iterator_types = ["parallel", "reduction"]} ins(%6 : tensor<6x24xf32>) outs(%8 : tensor<6x1xf32>) attrs =  {tw.op = "layer_norm"} {
  ^bb0(%in: f32, %out: f32):
    %16 = arith.mulf %in, %in : f32
    %17 = arith.addf %16, %out : f32
    linalg.yield %17 : f32
  } -> tensor<6x1xf32>
  %10 = tensor.empty() : tensor<6x1xf32>
  %11 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%9 : tensor<6x1xf32>) outs(%10 : tensor<6x1xf32>) attrs =  {tw.op = "layer_norm"} {
  ^bb0(%in: f32, %out: f32):
    %cst_1 = arith.constant 0.0416666679 : f32
    %16 = arith.mulf %in, %cst_1 : f32
    %cst_2 = arith.constant 9.99999974E-6 : f32
    %17 = arith.addf %16, %cst_2 : f32
    %18 = math.rsqrt %17 : f32
    linalg.yield %18 : f32
  } -> tensor<6x1xf32>
  %12 = tensor.empty() : tensor<6x24xf32>
  %13 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, 0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%6, %11 : tensor<6x24xf32>, tensor<6x1xf32>) outs(%12 : tensor<6x24xf32>) attrs =  {tw.op = "layer_norm"} {
  ^bb0(%in: f32, %in_1: f32, %out: f32):
    %16 = arith.mulf %in, %in_1 : f32
    linalg.yield %16 : f32
  } -> tensor<6x24xf32>
  %14 = tensor.empty() : tensor<6x24xf32>
  %15 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%13, %arg1, %arg1 : tensor<6x24xf32>, tensor<24xf32>, tensor<24xf32>) outs(%14 : tensor<6x24xf32>) attrs =  {tw.op = "layer_norm"} {
  ^bb0(%in: f32, %in_1: f32, %in_2: f32, %out: f32):
    %16 = arith.mulf %in, %in_1 : f32
    %17 = arith.addf %16, %in_2 : f32
    linalg.yield %17 : f32
  } -> tensor<6x24xf32>
  return %15 : tensor<6x24xf32>
}

// LEVEL 4: zen4
# rule: rows
# loops: i0, j0, i1, i2, j2, i3, j3, i4, i5, j5, i6, j6
# blocks: s0, s1, s2, s3, s4, s5, s6
# buffers: p0, p1, p2, t0, t1, t2, t3, t4, t5
s.inline('s1')
s.inline('s2')
s.inline('s5')
s.compute_at('s4', 'i6')
s.compute_at('s3', 'i6')
s.compute_at('s0', 'i6')
j0_o, j0_i = s.split('j0', 16)
s0_r = s.rfactor('s0', 'j0_i')  # makes t0_r
s.set_scope('t0_r', 'register')
j0_i_o, j0_i_i = s.split('j0_i', 16)
s.unroll('j0_i_o')
s.vectorize('j0_i_i')
j0_i_r_o, j0_i_r_i = s.split('j0_i_r', 16)
s.unroll('j0_i_r_o')
s.vectorize('j0_i_r_i')
j3_o, j3_i = s.split('j3', 16)
s3_r = s.rfactor('s3', 'j3_i')  # makes t3_r
s.set_scope('t3_r', 'register')
j3_i_o, j3_i_i = s.split('j3_i', 16)
s.unroll('j3_i_o')
s.vectorize('j3_i_i')
j3_i_r_o, j3_i_r_i = s.split('j3_i_r', 16)
s.unroll('j3_i_r_o')
s.vectorize('j3_i_r_i')
j6_o, j6_i = s.split('j6', 16)
s.vectorize('j6_i')
s.parallel('i6')

def layer_norm_1943f6fb7c(p0: f32[6, 24], p1: f32[24], p2: out(f32[6, 24])):
    for i6 in thread(6):
        t0_r = register(f32[16])
        for j0_i_i in vector(16, lanes=16):
            s0.init: t0_r[j0_i_i] = f32(0.0)
        for j0_i_i in vector(16, lanes=16):
            s0: t0_r[j0_i_i] = addf(t0_r[j0_i_i], p0[i6, j0_i_i])
        for j0_i_i in vector(8, lanes=16):
            s0: t0_r[j0_i_i] = addf(t0_r[j0_i_i], p0[i6, j0_i_i + 16])
        t0 = local(f32[1, 1])
        s0_r.init: t0[0, 0] = f32(0.0)
        for j0_i_r_i in vector(16, lanes=16):
            s0_r: t0[0, 0] = addf(t0[0, 0], t0_r[j0_i_r_i])
        t3_r = register(f32[16])
        for j3_i_i in vector(16, lanes=16):
            s3.init: t3_r[j3_i_i] = f32(0.0)
        for j3_i_i in vector(16, lanes=16):
            x0 = subf(p0[i6, j3_i_i], mulf(t0[0, 0], f32(0.0416666679084301)))
            s3: t3_r[j3_i_i] = addf(t3_r[j3_i_i], mulf(x0, x0))
        for j3_i_i in vector(8, lanes=16):
            x0 = subf(p0[i6, j3_i_i + 16], mulf(t0[0, 0], f32(0.0416666679084301)))
            s3: t3_r[j3_i_i] = addf(t3_r[j3_i_i], mulf(x0, x0))
        t4 = local(f32[1, 1])
        with local(f32[1, 1]) as t3:
            s3_r.init: t3[0, 0] = f32(0.0)
            for j3_i_r_i in vector(16, lanes=16):
                s3_r: t3[0, 0] = addf(t3[0, 0], t3_r[j3_i_r_i])
            s4: t4[0, 0] = rsqrt(addf(mulf(t3[0, 0], f32(0.0416666679084301)), f32(9.999999747378752e-06)))
        for j6_i in vector(16, lanes=16):
            s6: p2[i6, j6_i] = addf(mulf(mulf(subf(p0[i6, j6_i], mulf(t0[0, 0], f32(0.0416666679084301))), t4[0, 0]), p1[j6_i]), p1[j6_i])
        for j6_i in vector(8, lanes=16):
            s6: p2[i6, j6_i + 16] = addf(mulf(mulf(subf(p0[i6, j6_i + 16], mulf(t0[0, 0], f32(0.0416666679084301))), t4[0, 0]), p1[j6_i + 16]), p1[j6_i + 16])

// LEVEL 4: avx2
# rule: rows
# loops: i0, j0, i1, i2, j2, i3, j3, i4, i5, j5, i6, j6
# blocks: s0, s1, s2, s3, s4, s5, s6
# buffers: p0, p1, p2, t0, t1, t2, t3, t4, t5
s.inline('s1')
s.inline('s2')
s.inline('s5')
s.compute_at('s4', 'i6')
s.compute_at('s3', 'i6')
s.compute_at('s0', 'i6')
j0_o, j0_i = s.split('j0', 24)
s0_r = s.rfactor('s0', 'j0_i')  # makes t0_r
s.set_scope('t0_r', 'register')
j0_i_o, j0_i_i = s.split('j0_i', 8)
s.unroll('j0_i_o')
s.vectorize('j0_i_i')
j0_i_r_o, j0_i_r_i = s.split('j0_i_r', 8)
s.unroll('j0_i_r_o')
s.vectorize('j0_i_r_i')
j3_o, j3_i = s.split('j3', 24)
s3_r = s.rfactor('s3', 'j3_i')  # makes t3_r
s.set_scope('t3_r', 'register')
j3_i_o, j3_i_i = s.split('j3_i', 8)
s.unroll('j3_i_o')
s.vectorize('j3_i_i')
j3_i_r_o, j3_i_r_i = s.split('j3_i_r', 8)
s.unroll('j3_i_r_o')
s.vectorize('j3_i_r_i')
j6_o, j6_i = s.split('j6', 24)
j6_i_o, j6_i_i = s.split('j6_i', 8)
s.unroll('j6_i_o')
s.vectorize('j6_i_i')
s.parallel('i6')

def layer_norm_1943f6fb7c(p0: f32[6, 24], p1: f32[24], p2: out(f32[6, 24])):
    for i6 in thread(6):
        t0_r = register(f32[24])
        for j0_i_o in unroll(3):
            for j0_i_i in vector(8, lanes=8):
                s0.init: t0_r[j0_i_o * 8 + j0_i_i] = f32(0.0)
        for j0_i_o in unroll(3):
            for j0_i_i in vector(8, lanes=8):
                s0: t0_r[j0_i_o * 8 + j0_i_i] = addf(t0_r[j0_i_o * 8 + j0_i_i], p0[i6, j0_i_o * 8 + j0_i_i])
        t0 = local(f32[1, 1])
        s0_r.init: t0[0, 0] = f32(0.0)
        for j0_i_r_o in unroll(3):
            for j0_i_r_i in vector(8, lanes=8):
                s0_r: t0[0, 0] = addf(t0[0, 0], t0_r[j0_i_r_o * 8 + j0_i_r_i])
        t3_r = register(f32[24])
        for j3_i_o in unroll(3):
            for j3_i_i in vector(8, lanes=8):
                s3.init: t3_r[j3_i_o * 8 + j3_i_i] = f32(0.0)
        for j3_i_o in unroll(3):
            for j3_i_i in vector(8, lanes=8):
                x0 = subf(p0[i6, j3_i_o * 8 + j3_i_i], mulf(t0[0, 0], f32(0.0416666679084301)))
                s3: t3_r[j3_i_o * 8 + j3_i_i] = addf(t3_r[j3_i_o * 8 + j3_i_i], mulf(x0, x0))
        t4 = local(f32[1, 1])
        with local(f32[1, 1]) as t3:
            s3_r.init: t3[0, 0] = f32(0.0)
            for j3_i_r_o in unroll(3):
                for j3_i_r_i in vector(8, lanes=8):
                    s3_r: t3[0, 0] = addf(t3[0, 0], t3_r[j3_i_r_o * 8 + j3_i_r_i])
            s4: t4[0, 0] = rsqrt(addf(mulf(t3[0, 0], f32(0.0416666679084301)), f32(9.999999747378752e-06)))
        for j6_i_o in unroll(3):
            for j6_i_i in vector(8, lanes=8):
                s6: p2[i6, j6_i_o * 8 + j6_i_i] = addf(mulf(mulf(subf(p0[i6, j6_i_o * 8 + j6_i_i], mulf(t0[0, 0], f32(0.0416666679084301))), t4[0, 0]), p1[j6_i_o * 8 + j6_i_i]), p1[j6_i_o * 8 + j6_i_i])

// LEVEL 4: neon
# rule: rows
# loops: i0, j0, i1, i2, j2, i3, j3, i4, i5, j5, i6, j6
# blocks: s0, s1, s2, s3, s4, s5, s6
# buffers: p0, p1, p2, t0, t1, t2, t3, t4, t5
s.inline('s1')
s.inline('s2')
s.inline('s5')
s.compute_at('s4', 'i6')
s.compute_at('s3', 'i6')
s.compute_at('s0', 'i6')
j0_o, j0_i = s.split('j0', 16)
s0_r = s.rfactor('s0', 'j0_i')  # makes t0_r
s.set_scope('t0_r', 'register')
j0_i_o, j0_i_i = s.split('j0_i', 4)
s.unroll('j0_i_o')
s.vectorize('j0_i_i')
j0_i_r_o, j0_i_r_i = s.split('j0_i_r', 4)
s.unroll('j0_i_r_o')
s.vectorize('j0_i_r_i')
j3_o, j3_i = s.split('j3', 16)
s3_r = s.rfactor('s3', 'j3_i')  # makes t3_r
s.set_scope('t3_r', 'register')
j3_i_o, j3_i_i = s.split('j3_i', 4)
s.unroll('j3_i_o')
s.vectorize('j3_i_i')
j3_i_r_o, j3_i_r_i = s.split('j3_i_r', 4)
s.unroll('j3_i_r_o')
s.vectorize('j3_i_r_i')
j6_o, j6_i = s.split('j6', 16)
j6_i_o, j6_i_i = s.split('j6_i', 4)
s.unroll('j6_i_o')
s.vectorize('j6_i_i')
s.parallel('i6')

def layer_norm_1943f6fb7c(p0: f32[6, 24], p1: f32[24], p2: out(f32[6, 24])):
    for i6 in thread(6):
        t0_r = register(f32[16])
        for j0_i_o in unroll(4):
            for j0_i_i in vector(4, lanes=4):
                s0.init: t0_r[j0_i_o * 4 + j0_i_i] = f32(0.0)
        for j0_i_o in unroll(4):
            for j0_i_i in vector(4, lanes=4):
                s0: t0_r[j0_i_o * 4 + j0_i_i] = addf(t0_r[j0_i_o * 4 + j0_i_i], p0[i6, j0_i_o * 4 + j0_i_i])
        for j0_i_o in unroll(2):
            for j0_i_i in vector(4, lanes=4):
                s0: t0_r[j0_i_o * 4 + j0_i_i] = addf(t0_r[j0_i_o * 4 + j0_i_i], p0[i6, j0_i_o * 4 + j0_i_i + 16])
        t0 = local(f32[1, 1])
        s0_r.init: t0[0, 0] = f32(0.0)
        for j0_i_r_o in unroll(4):
            for j0_i_r_i in vector(4, lanes=4):
                s0_r: t0[0, 0] = addf(t0[0, 0], t0_r[j0_i_r_o * 4 + j0_i_r_i])
        t3_r = register(f32[16])
        for j3_i_o in unroll(4):
            for j3_i_i in vector(4, lanes=4):
                s3.init: t3_r[j3_i_o * 4 + j3_i_i] = f32(0.0)
        for j3_i_o in unroll(4):
            for j3_i_i in vector(4, lanes=4):
                x0 = subf(p0[i6, j3_i_o * 4 + j3_i_i], mulf(t0[0, 0], f32(0.0416666679084301)))
                s3: t3_r[j3_i_o * 4 + j3_i_i] = addf(t3_r[j3_i_o * 4 + j3_i_i], mulf(x0, x0))
        for j3_i_o in unroll(2):
            for j3_i_i in vector(4, lanes=4):
                x0 = subf(p0[i6, j3_i_o * 4 + j3_i_i + 16], mulf(t0[0, 0], f32(0.0416666679084301)))
                s3: t3_r[j3_i_o * 4 + j3_i_i] = addf(t3_r[j3_i_o * 4 + j3_i_i], mulf(x0, x0))
        t4 = local(f32[1, 1])
        with local(f32[1, 1]) as t3:
            s3_r.init: t3[0, 0] = f32(0.0)
            for j3_i_r_o in unroll(4):
                for j3_i_r_i in vector(4, lanes=4):
                    s3_r: t3[0, 0] = addf(t3[0, 0], t3_r[j3_i_r_o * 4 + j3_i_r_i])
            s4: t4[0, 0] = rsqrt(addf(mulf(t3[0, 0], f32(0.0416666679084301)), f32(9.999999747378752e-06)))
        for j6_i_o in unroll(4):
            for j6_i_i in vector(4, lanes=4):
                s6: p2[i6, j6_i_o * 4 + j6_i_i] = addf(mulf(mulf(subf(p0[i6, j6_i_o * 4 + j6_i_i], mulf(t0[0, 0], f32(0.0416666679084301))), t4[0, 0]), p1[j6_i_o * 4 + j6_i_i]), p1[j6_i_o * 4 + j6_i_i])
        for j6_i_o in unroll(2):
            for j6_i_i in vector(4, lanes=4):
                x0 = p1[j6_i_o * 4 + j6_i_i + 16]
                s6: p2[i6, j6_i_o * 4 + j6_i_i + 16] = addf(mulf(mulf(subf(p0[i6, j6_i_o * 4 + j6_i_i + 16], mulf(t0[0, 0], f32(0.0416666679084301))), t4[0, 0]), x0), x0)
