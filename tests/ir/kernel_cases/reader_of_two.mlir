// Something dear (erf) that a sum and a difference read by way of something cheap: it is computed once.
// MACHINES zen4
func.func @main(%x: tensor<30x40xf32>) -> tensor<30x40xf32> {
  %0 = "tw.erf"(%x) : (tensor<30x40xf32>) -> tensor<30x40xf32>
  %1 = "tw.add"(%0, %x) : (tensor<30x40xf32>, tensor<30x40xf32>) -> tensor<30x40xf32>
  %2 = "tw.reduce_sum"(%1) {axes = array<i64: 1>, keepdims = true} : (tensor<30x40xf32>) -> tensor<30x1xf32>
  %3 = "tw.sub"(%1, %2) : (tensor<30x40xf32>, tensor<30x1xf32>) -> tensor<30x40xf32>
  return %3 : tensor<30x40xf32>
}

// LEVEL 3: zen4
func.func private @erf_add_reduce_sum_sub_78d938ee4b(%arg0: tensor<30x40xf32>) -> tensor<30x40xf32> {
  %0 = tensor.empty() : tensor<30x40xf32>
  %1 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%arg0 : tensor<30x40xf32>) outs(%0 : tensor<30x40xf32>) attrs =  {tw.op = "erf"} {
  ^bb0(%in: f32, %out: f32):
    %9 = math.erf %in : f32
    linalg.yield %9 : f32
  } -> tensor<30x40xf32>
  %2 = tensor.empty() : tensor<30x40xf32>
  %3 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%1, %arg0 : tensor<30x40xf32>, tensor<30x40xf32>) outs(%2 : tensor<30x40xf32>) attrs =  {tw.op = "add"} {
  ^bb0(%in: f32, %in_0: f32, %out: f32):
    %9 = arith.addf %in, %in_0 : f32
    linalg.yield %9 : f32
  } -> tensor<30x40xf32>
  %cst = arith.constant 0.000000e+00 : f32
  %4 = tensor.empty() : tensor<30x1xf32>
  %5 = linalg.fill ins(%cst : f32) outs(%4 : tensor<30x1xf32>) -> tensor<30x1xf32>
  %6 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, 0)>], iterator_types = ["parallel", "reduction"]} ins(%3 : tensor<30x40xf32>) outs(%5 : tensor<30x1xf32>) attrs =  {tw.op = "reduce_sum"} {
  ^bb0(%in: f32, %out: f32):
    %9 = arith.addf %in, %out : f32
    linalg.yield %9 : f32
  } -> tensor<30x1xf32>
  %7 = tensor.empty() : tensor<30x40xf32>
  %8 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, 0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%3, %6 : tensor<30x40xf32>, tensor<30x1xf32>) outs(%7 : tensor<30x40xf32>) attrs =  {tw.op = "sub"} {
  ^bb0(%in: f32, %in_0: f32, %out: f32):
    %9 = arith.subf %in, %in_0 : f32
    linalg.yield %9 : f32
  } -> tensor<30x40xf32>
  return %8 : tensor<30x40xf32>
}

// LEVEL 4: zen4
# rule: rows
# loops: i0, j0, i1, j1, i2, j2, i3, j3
# blocks: s0, s1, s2, s3
# buffers: p0, p1, t0, t1, t2
s.inline('s0')
s.compute_at('s2', 'i3')
j1_a, = s.compute_at('s1', 'i3')
j1_a_o, j1_a_i = s.split('j1_a', 32)
j1_a_i_o, j1_a_i_i = s.split('j1_a_i', 16)
s.unroll('j1_a_i_o')
s.vectorize('j1_a_i_i')
j2_o, j2_i = s.split('j2', 32)
s2_r = s.rfactor('s2', 'j2_i')  # makes t2_r
s.set_scope('t2_r', 'register')
j2_i_o, j2_i_i = s.split('j2_i', 16)
s.unroll('j2_i_o')
s.vectorize('j2_i_i')
j2_i_r_o, j2_i_r_i = s.split('j2_i_r', 16)
s.unroll('j2_i_r_o')
s.vectorize('j2_i_r_i')
j3_o, j3_i = s.split('j3', 32)
j3_i_o, j3_i_i = s.split('j3_i', 16)
s.unroll('j3_i_o')
s.vectorize('j3_i_i')
j1_a_o = s.merge('j1_a_o', 'j2_o')
s.pad('t1', 16)
s.parallel('i3')

def erf_add_reduce_sum_sub_78d938ee4b(p0: f32[30, 40], p1: out(f32[30, 40])):
    for i3 in thread(30):
        t1 = local(f32[1, 48])
        t2_r = register(f32[32])
        for j2_i_o in unroll(2):
            for j2_i_i in vector(16, lanes=16):
                s2.init: t2_r[j2_i_o * 16 + j2_i_i] = f32(0.0)
        for j1_a_i_o in unroll(2):
            for j1_a_i_i in vector(16, lanes=16):
                s1: t1[0, j1_a_i_o * 16 + j1_a_i_i] = addf(erf(p0[i3, j1_a_i_o * 16 + j1_a_i_i]), p0[i3, j1_a_i_o * 16 + j1_a_i_i])
        for j2_i_o in unroll(2):
            for j2_i_i in vector(16, lanes=16):
                s2: t2_r[j2_i_o * 16 + j2_i_i] = addf(t2_r[j2_i_o * 16 + j2_i_i], t1[0, j2_i_o * 16 + j2_i_i])
        for j1_a_i_i in vector(8, lanes=16):
            s1: t1[0, j1_a_i_i + 32] = addf(erf(p0[i3, j1_a_i_i + 32]), p0[i3, j1_a_i_i + 32])
        for j2_i_i in vector(8, lanes=16):
            s2: t2_r[j2_i_i] = addf(t2_r[j2_i_i], t1[0, j2_i_i + 32])
        t2 = local(f32[1, 1])
        s2_r.init: t2[0, 0] = f32(0.0)
        for j2_i_r_o in unroll(2):
            for j2_i_r_i in vector(16, lanes=16):
                s2_r: t2[0, 0] = addf(t2[0, 0], t2_r[j2_i_r_o * 16 + j2_i_r_i])
        for j3_i_o in unroll(2):
            for j3_i_i in vector(16, lanes=16):
                s3: p1[i3, j3_i_o * 16 + j3_i_i] = subf(t1[0, j3_i_o * 16 + j3_i_i], t2[0, 0])
        for j3_i_i in vector(8, lanes=16):
            s3: p1[i3, j3_i_i + 32] = subf(t1[0, j3_i_i + 32], t2[0, 0])
