// GELU of a sum: operators on elements are one loop over all of them.
func.func @main(%x: tensor<3x24xf32>, %y: tensor<24xf32>) -> tensor<3x24xf32> {
  %0 = "tw.add"(%x, %y) : (tensor<3x24xf32>, tensor<24xf32>) -> tensor<3x24xf32>
  %1 = "tw.gelu"(%0) : (tensor<3x24xf32>) -> tensor<3x24xf32>
  return %1 : tensor<3x24xf32>
}

// LEVEL 3: zen4 avx2 neon
func.func private @add_gelu_d48dacbc94(%arg0: tensor<3x24xf32>, %arg1: tensor<24xf32>) -> tensor<3x24xf32> {
  %0 = tensor.empty() : tensor<3x24xf32>
  %1 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%arg0, %arg1 : tensor<3x24xf32>, tensor<24xf32>) outs(%0 : tensor<3x24xf32>) attrs =  {tw.op = "add"} {
  ^bb0(%in: f32, %in_0: f32, %out: f32):
    %4 = arith.addf %in, %in_0 : f32
    linalg.yield %4 : f32
  } -> tensor<3x24xf32>
  %2 = tensor.empty() : tensor<3x24xf32>
  %3 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%1 : tensor<3x24xf32>) outs(%2 : tensor<3x24xf32>) attrs =  {tw.op = "gelu"} {
  ^bb0(%in: f32, %out: f32):
    %cst = arith.constant 5.000000e-01 : f32
    %4 = arith.mulf %in, %cst : f32
    %cst_0 = arith.constant 0.707106769 : f32
    %5 = arith.mulf %in, %cst_0 : f32
    %6 = math.erf %5 : f32
    %cst_1 = arith.constant 1.000000e+00 : f32
    %7 = arith.addf %6, %cst_1 : f32
    %8 = arith.mulf %4, %7 : f32
    linalg.yield %8 : f32
  } -> tensor<3x24xf32>
  return %3 : tensor<3x24xf32>
}

// LEVEL 4: zen4
# rule: elementwise
# loops: i0, j0, i1, j1
# blocks: s0, s1
# buffers: p0, p1, p2, t0
s.inline('s0')
j1_o, j1_i = s.split('j1', 16)
s.vectorize('j1_i')
i1_j1_o = s.fuse('i1', 'j1_o')
s.parallel('i1_j1_o')

def add_gelu_d48dacbc94(p0: f32[3, 24], p1: f32[24], p2: out(f32[3, 24])):
    for i1_j1_o in thread(6):
        if i1_j1_o % 2 < 1:
            for j1_i in vector(16, lanes=16):
                x0 = addf(p0[i1_j1_o // 2, i1_j1_o % 2 * 16 + j1_i], p1[i1_j1_o % 2 * 16 + j1_i])
                s1: p2[i1_j1_o // 2, i1_j1_o % 2 * 16 + j1_i] = mulf(mulf(x0, f32(0.5)), addf(erf(mulf(x0, f32(0.7071067690849304))), f32(1.0)))
        else:
            for j1_i in vector(8, lanes=16):
                x0 = addf(p0[i1_j1_o // 2, j1_i + 16], p1[j1_i + 16])
                s1: p2[i1_j1_o // 2, j1_i + 16] = mulf(mulf(x0, f32(0.5)), addf(erf(mulf(x0, f32(0.7071067690849304))), f32(1.0)))

// LEVEL 4: avx2
# rule: elementwise
# loops: i0, j0, i1, j1
# blocks: s0, s1
# buffers: p0, p1, p2, t0
s.inline('s0')
j1_o, j1_i = s.split('j1', 8)
s.vectorize('j1_i')
i1_j1_o = s.fuse('i1', 'j1_o')
s.parallel('i1_j1_o')

def add_gelu_d48dacbc94(p0: f32[3, 24], p1: f32[24], p2: out(f32[3, 24])):
    for i1_j1_o in thread(9):
        for j1_i in vector(8, lanes=8):
            x0 = addf(p0[i1_j1_o // 3, i1_j1_o % 3 * 8 + j1_i], p1[i1_j1_o % 3 * 8 + j1_i])
            s1: p2[i1_j1_o // 3, i1_j1_o % 3 * 8 + j1_i] = mulf(mulf(x0, f32(0.5)), addf(erf(mulf(x0, f32(0.7071067690849304))), f32(1.0)))

// LEVEL 4: neon
# rule: elementwise
# loops: i0, j0, i1, j1
# blocks: s0, s1
# buffers: p0, p1, p2, t0
s.inline('s0')
j1_o, j1_i = s.split('j1', 4)
s.vectorize('j1_i')
i1_j1_o = s.fuse('i1', 'j1_o')
s.parallel('i1_j1_o')

def add_gelu_d48dacbc94(p0: f32[3, 24], p1: f32[24], p2: out(f32[3, 24])):
    for i1_j1_o in thread(18):
        for j1_i in vector(4, lanes=4):
            x0 = addf(p0[i1_j1_o // 6, i1_j1_o % 6 * 4 + j1_i], p1[i1_j1_o % 6 * 4 + j1_i])
            s1: p2[i1_j1_o // 6, i1_j1_o % 6 * 4 + j1_i] = mulf(mulf(x0, f32(0.5)), addf(erf(mulf(x0, f32(0.7071067690849304))), f32(1.0)))
