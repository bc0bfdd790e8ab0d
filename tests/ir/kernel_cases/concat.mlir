// Two matrices side by side, one of them computed: it is written to its place, not copied there.
func.func @main(%x: tensor<6x16xf32>, %y: tensor<6x24xf32>) -> tensor<6x40xf32> {
  %0 = "tw.exp"(%x) : (tensor<6x16xf32>) -> tensor<6x16xf32>
  %1 = "tw.concat"(%0, %y) {axis = 1, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<6x16xf32>, tensor<6x24xf32>) -> tensor<6x40xf32>
  return %1 : tensor<6x40xf32>
}

// LEVEL 3: zen4 avx2 neon
func.func private @exp_concat_9f76161113(%arg0: tensor<6x16xf32>, %arg1: tensor<6x24xf32>) -> tensor<6x40xf32> {
  %0 = tensor.empty() : tensor<6x16xf32>
  %1 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%arg0 : tensor<6x16xf32>) outs(%0 : tensor<6x16xf32>) attrs =  {tw.op = "exp"} {
  ^bb0(%in: f32, %out: f32):
    %2 = math.exp %in : f32
    linalg.yield %2 : f32
  } -> tensor<6x16xf32>
  %concat = tensor.concat dim(1) %1, %arg1 {tw.op = "concat"} : (tensor<6x16xf32>, tensor<6x24xf32>) -> tensor<6x40xf32>
  return %concat : tensor<6x40xf32>
}

// LEVEL 4: zen4
# rule: elementwise
# loops: i0, j0, i1, j1, i2, j2
# blocks: s0, s1, s2
# buffers: p0, p1, p2, t0
s.inline('s0')
j1_o, j1_i = s.split('j1', 16)
s.vectorize('j1_i')
i1_j1_o = s.fuse('i1', 'j1_o')
s.parallel('i1_j1_o')
j2_o, j2_i = s.split('j2', 16)
s.vectorize('j2_i')
i2_j2_o = s.fuse('i2', 'j2_o')
s.parallel('i2_j2_o')

def exp_concat_9f76161113(p0: f32[6, 16], p1: f32[6, 24], p2: out(f32[6, 40])):
    for i1_j1_o in thread(6):
        for j1_i in vector(16, lanes=16):
            s1: p2[i1_j1_o, j1_i] = exp(p0[i1_j1_o, j1_i])
    for i2_j2_o in thread(12):
        if i2_j2_o % 2 < 1:
            for j2_i in vector(16, lanes=16):
                s2: p2[i2_j2_o // 2, i2_j2_o % 2 * 16 + j2_i + 16] = p1[i2_j2_o // 2, i2_j2_o % 2 * 16 + j2_i]
        else:
            for j2_i in vector(8, lanes=16):
                s2: p2[i2_j2_o // 2, j2_i + 32] = p1[i2_j2_o // 2, j2_i + 16]

// LEVEL 4: avx2
# rule: elementwise
# loops: i0, j0, i1, j1, i2, j2
# blocks: s0, s1, s2
# buffers: p0, p1, p2, t0
s.inline('s0')
j1_o, j1_i = s.split('j1', 8)
s.vectorize('j1_i')
i1_j1_o = s.fuse('i1', 'j1_o')
s.parallel('i1_j1_o')
j2_o, j2_i = s.split('j2', 8)
s.vectorize('j2_i')
i2_j2_o = s.fuse('i2', 'j2_o')
s.parallel('i2_j2_o')

def exp_concat_9f76161113(p0: f32[6, 16], p1: f32[6, 24], p2: out(f32[6, 40])):
    for i1_j1_o in thread(12):
        for j1_i in vector(8, lanes=8):
            s1: p2[i1_j1_o // 2, i1_j1_o % 2 * 8 + j1_i] = exp(p0[i1_j1_o // 2, i1_j1_o % 2 * 8 + j1_i])
    for i2_j2_o in thread(18):
        for j2_i in vector(8, lanes=8):
            s2: p2[i2_j2_o // 3, i2_j2_o % 3 * 8 + j2_i + 16] = p1[i2_j2_o // 3, i2_j2_o % 3 * 8 + j2_i]

// LEVEL 4: neon
# rule: elementwise
# loops: i0, j0, i1, j1, i2, j2
# blocks: s0, s1, s2
# buffers: p0, p1, p2, t0
s.inline('s0')
j1_o, j1_i = s.split('j1', 4)
s.vectorize('j1_i')
i1_j1_o = s.fuse('i1', 'j1_o')
s.parallel('i1_j1_o')
j2_o, j2_i = s.split('j2', 4)
s.vectorize('j2_i')
i2_j2_o = s.fuse('i2', 'j2_o')
s.parallel('i2_j2_o')

def exp_concat_9f76161113(p0: f32[6, 16], p1: f32[6, 24], p2: out(f32[6, 40])):
    for i1_j1_o in thread(24):
        for j1_i in vector(4, lanes=4):
            s1: p2[i1_j1_o // 4, i1_j1_o % 4 * 4 + j1_i] = exp(p0[i1_j1_o // 4, i1_j1_o % 4 * 4 + j1_i])
    for i2_j2_o in thread(36):
        for j2_i in vector(4, lanes=4):
            s2: p2[i2_j2_o // 6, i2_j2_o % 6 * 4 + j2_i + 16] = p1[i2_j2_o // 6, i2_j2_o % 6 * 4 + j2_i]
