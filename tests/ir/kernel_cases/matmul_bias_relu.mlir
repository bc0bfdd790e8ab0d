// A product with bias and ReLU: a tile of the result stays in registers, the epilogue is applied before it is stored.
// CODE zen4 avx2 neon
// CONSTANT w f32 2x16
// CONSTANT b f32 16
func.func @main(%x: tensor<2x2xf32>) -> tensor<2x16xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<2x16xf32>
  %b = "tw.constant"() {symbol = "b"} : () -> tensor<16xf32>
  %0 = "tw.matmul"(%x, %w) : (tensor<2x2xf32>, tensor<2x16xf32>) -> tensor<2x16xf32>
  %1 = "tw.add"(%0, %b) : (tensor<2x16xf32>, tensor<16xf32>) -> tensor<2x16xf32>
  %2 = "tw.relu"(%1) : (tensor<2x16xf32>) -> tensor<2x16xf32>
  return %2 : tensor<2x16xf32>
}

// LEVEL 3: zen4 avx2 neon
func.func private @matmul_add_relu_39f892fd9d(%arg0: tensor<2x2xf32>, %arg1: tensor<2x16xf32> {tw.constant}, %arg2: tensor<16xf32> {tw.constant}) -> tensor<2x16xf32> {
  %cst = arith.constant 0.000000e+00 : f32
  %0 = tensor.empty() : tensor<2x16xf32>
  %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<2x16xf32>) -> tensor<2x16xf32>
  %2 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%arg0, %arg1 : tensor<2x2xf32>, tensor<2x16xf32>) outs(%1 : tensor<2x16xf32>) attrs =  {tw.op = "matmul"} {
  ^bb0(%in: f32, %in_0: f32, %out: f32):
    %7 = arith.mulf %in, %in_0 : f32
    %8 = arith.addf %out, %7 : f32
    linalg.yield %8 : f32
  } -> tensor<2x16xf32>
  %3 = tensor.empty() : tensor<2x16xf32>
  %4 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%2, %arg2 : tensor<2x16xf32>, tensor<16xf32>) outs(%3 : tensor<2x16xf32>) attrs =  {tw.op = "add"} {
  ^bb0(%in: f32, %in_0: f32, %out: f32):
    %7 = arith.addf %in, %in_0 : f32
    linalg.yield %7 : f32
  } -> tensor<2x16xf32>
  %5 = tensor.empty() : tensor<2x16xf32>
  %6 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%4 : tensor<2x16xf32>) outs(%5 : tensor<2x16xf32>) attrs =  {tw.op = "relu"} {
  ^bb0(%in: f32, %out: f32):
    %cst_0 = arith.constant 0.000000e+00 : f32
    %7 = arith.maximumf %in, %cst_0 : f32
    linalg.yield %7 : f32
  } -> tensor<2x16xf32>
  return %6 : tensor<2x16xf32>
}

// LEVEL 4: zen4
# rule: contraction
# loops: i0, j0, k0, i1, j1, i2, j2
# blocks: s0, s1, s2
# buffers: p0, p1, p2, p3, t0, t1
s.inline('s1')
s.reindex('s2', 's0')
j0_o, j0_i = s.split('j0', 16)
i0_o, i0_i = s.split('i0', 2)
s.reorder('j0_o', 'i0_o', 'k0', 'i0_i', 'j0_i')
s.pack('p1', ((), (16,)), (1, 0, 2))
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
s.unroll('k0')
s.parallel('j0_o_i0_o')

def matmul_add_relu_39f892fd9d(
    p0: f32[2, 2],
    p1: packed(f32[1, 2, 16], splits=((), (16,)), order=(1, 0, 2)),
    p2: f32[16],
    p3: out(f32[2, 16]),
):
    t0 = register(f32[2, 16])
    for i0_i in unroll(2):
        for j0_i_i in vector(16, lanes=16):
            s0.init: t0[i0_i, j0_i_i] = f32(0.0)
    for k0 in unroll(2):
        for i0_i in unroll(2):
            for j0_i_i in vector(16, lanes=16):
                s0: t0[i0_i, j0_i_i] = addf(t0[i0_i, j0_i_i], mulf(p0[i0_i, k0], p1[0, k0, j0_i_i]))
    for m_s2_a in unroll(2):
        for n_s2_a_i in vector(16, lanes=16):
            s2: p3[m_s2_a, n_s2_a_i] = maximumf(addf(t0[m_s2_a, n_s2_a_i], p2[n_s2_a_i]), f32(0.0))

// LEVEL 4: avx2
# rule: contraction
# loops: i0, j0, k0, i1, j1, i2, j2
# blocks: s0, s1, s2
# buffers: p0, p1, p2, p3, t0, t1
s.inline('s1')
s.reindex('s2', 's0')
j0_o, j0_i = s.split('j0', 16)
i0_o, i0_i = s.split('i0', 2)
s.reorder('j0_o', 'i0_o', 'k0', 'i0_i', 'j0_i')
s.pack('p1', ((), (16,)), (1, 0, 2))
j0_o_i0_o = s.fuse('j0_o', 'i0_o')
m_s2_a, n_s2_a = s.reverse_compute_at('s2', 'j0_o_i0_o')
s.set_scope('t0', 'register')
s.unroll('i0_i')
j0_i_o, j0_i_i = s.split('j0_i', 8)
s.unroll('j0_i_o')
s.vectorize('j0_i_i')
s.unroll('m_s2_a')
n_s2_a_o, n_s2_a_i = s.split('n_s2_a', 8)
s.unroll('n_s2_a_o')
s.vectorize('n_s2_a_i')
s.unroll('k0')
s.parallel('j0_o_i0_o')

def matmul_add_relu_39f892fd9d(
    p0: f32[2, 2],
    p1: packed(f32[1, 2, 16], splits=((), (16,)), order=(1, 0, 2)),
    p2: f32[16],
    p3: out(f32[2, 16]),
):
    t0 = register(f32[2, 16])
    for i0_i in unroll(2):
        for j0_i_o in unroll(2):
            for j0_i_i in vector(8, lanes=8):
                s0.init: t0[i0_i, j0_i_o * 8 + j0_i_i] = f32(0.0)
    for k0 in unroll(2):
        for i0_i in unroll(2):
            for j0_i_o in unroll(2):
                for j0_i_i in vector(8, lanes=8):
                    s0: t0[i0_i, j0_i_o * 8 + j0_i_i] = addf(t0[i0_i, j0_i_o * 8 + j0_i_i], mulf(p0[i0_i, k0], p1[0, k0, j0_i_o * 8 + j0_i_i]))
    for m_s2_a in unroll(2):
        for n_s2_a_o in unroll(2):
            for n_s2_a_i in vector(8, lanes=8):
                s2: p3[m_s2_a, n_s2_a_o * 8 + n_s2_a_i] = maximumf(addf(t0[m_s2_a, n_s2_a_o * 8 + n_s2_a_i], p2[n_s2_a_o * 8 + n_s2_a_i]), f32(0.0))

// LEVEL 4: neon
# rule: contraction
# loops: i0, j0, k0, i1, j1, i2, j2
# blocks: s0, s1, s2
# buffers: p0, p1, p2, p3, t0, t1
s.inline('s1')
s.reindex('s2', 's0')
j0_o, j0_i = s.split('j0', 16)
i0_o, i0_i = s.split('i0', 2)
s.reorder('j0_o', 'i0_o', 'k0', 'i0_i', 'j0_i')
s.pack('p1', ((), (16,)), (1, 0, 2))
j0_o_i0_o = s.fuse('j0_o', 'i0_o')
m_s2_a, n_s2_a = s.reverse_compute_at('s2', 'j0_o_i0_o')
s.set_scope('t0', 'register')
s.unroll('i0_i')
j0_i_o, j0_i_i = s.split('j0_i', 4)
s.unroll('j0_i_o')
s.vectorize('j0_i_i')
s.unroll('m_s2_a')
n_s2_a_o, n_s2_a_i = s.split('n_s2_a', 4)
s.unroll('n_s2_a_o')
s.vectorize('n_s2_a_i')
s.unroll('k0')
s.parallel('j0_o_i0_o')

def matmul_add_relu_39f892fd9d(
    p0: f32[2, 2],
    p1: packed(f32[1, 2, 16], splits=((), (16,)), order=(1, 0, 2)),
    p2: f32[16],
    p3: out(f32[2, 16]),
):
    t0 = register(f32[2, 16])
    for i0_i in unroll(2):
        for j0_i_o in unroll(4):
            for j0_i_i in vector(4, lanes=4):
                s0.init: t0[i0_i, j0_i_o * 4 + j0_i_i] = f32(0.0)
    for k0 in unroll(2):
        for i0_i in unroll(2):
            for j0_i_o in unroll(4):
                for j0_i_i in vector(4, lanes=4):
                    s0: t0[i0_i, j0_i_o * 4 + j0_i_i] = addf(t0[i0_i, j0_i_o * 4 + j0_i_i], mulf(p0[i0_i, k0], p1[0, k0, j0_i_o * 4 + j0_i_i]))
    for m_s2_a in unroll(2):
        for n_s2_a_o in unroll(4):
            for n_s2_a_i in vector(4, lanes=4):
                s2: p3[m_s2_a, n_s2_a_o * 4 + n_s2_a_i] = maximumf(addf(t0[m_s2_a, n_s2_a_o * 4 + n_s2_a_i], p2[n_s2_a_o * 4 + n_s2_a_i]), f32(0.0))

// LEVEL 5: zen4
module {
  func.func @matmul_add_relu_39f892fd9d(%p0: memref<4xf32>, %p1: memref<32xf32>, %p2: memref<16xf32>, %p3: memref<32xf32> {llvm.noalias}, %scratch: memref<1xi8> {llvm.noalias}, %tid: index, %nt: index) {
    %v1 = arith.constant 0 : index
    %v3 = arith.constant 0.0 : f32
    %v9 = arith.constant 2 : index
    %v13 = arith.constant 1 : index
    %v15 = arith.constant 16 : index
    %v19 = arith.constant 3 : index
    %v2 = arith.cmpi eq, %tid, %v1 : index
    scf.if %v2 {
      %v4 = vector.broadcast %v3 : f32 to vector<16xf32>
      %v5 = memref.load %p0[%v1] : memref<4xf32>
      %v6 = vector.load %p1[%v1] : memref<32xf32>, vector<16xf32>
      %v7 = vector.broadcast %v5 : f32 to vector<16xf32>
      %v8 = math.fma %v7, %v6, %v4 : vector<16xf32>
      %v10 = memref.load %p0[%v9] : memref<4xf32>
      %v11 = vector.broadcast %v10 : f32 to vector<16xf32>
      %v12 = math.fma %v11, %v6, %v4 : vector<16xf32>
      %v14 = memref.load %p0[%v13] : memref<4xf32>
      %v16 = vector.load %p1[%v15] : memref<32xf32>, vector<16xf32>
      %v17 = vector.broadcast %v14 : f32 to vector<16xf32>
      %v18 = math.fma %v17, %v16, %v8 : vector<16xf32>
      %v20 = memref.load %p0[%v19] : memref<4xf32>
      %v21 = vector.broadcast %v20 : f32 to vector<16xf32>
      %v22 = math.fma %v21, %v16, %v12 : vector<16xf32>
      %v23 = vector.load %p2[%v1] : memref<16xf32>, vector<16xf32>
      %v24 = arith.addf %v18, %v23 : vector<16xf32>
      %v25 = arith.maximumf %v24, %v4 fastmath<nsz> : vector<16xf32>
      vector.store %v25, %p3[%v1] : memref<32xf32>, vector<16xf32>
      %v26 = arith.addf %v22, %v23 : vector<16xf32>
      %v27 = arith.maximumf %v26, %v4 fastmath<nsz> : vector<16xf32>
      vector.store %v27, %p3[%v15] : memref<32xf32>, vector<16xf32>
    }
    return
  }
}

// LEVEL 5: avx2
module {
  func.func @matmul_add_relu_39f892fd9d(%p0: memref<4xf32>, %p1: memref<32xf32>, %p2: memref<16xf32>, %p3: memref<32xf32> {llvm.noalias}, %scratch: memref<1xi8> {llvm.noalias}, %tid: index, %nt: index) {
    %v1 = arith.constant 0 : index
    %v3 = arith.constant 0.0 : f32
    %v9 = arith.constant 8 : index
    %v12 = arith.constant 2 : index
    %v17 = arith.constant 1 : index
    %v19 = arith.constant 16 : index
    %v23 = arith.constant 24 : index
    %v26 = arith.constant 3 : index
    %v2 = arith.cmpi eq, %tid, %v1 : index
    scf.if %v2 {
      %v4 = vector.broadcast %v3 : f32 to vector<8xf32>
      %v5 = memref.load %p0[%v1] : memref<4xf32>
      %v6 = vector.load %p1[%v1] : memref<32xf32>, vector<8xf32>
      %v7 = vector.broadcast %v5 : f32 to vector<8xf32>
      %v8 = math.fma %v7, %v6, %v4 : vector<8xf32>
      %v10 = vector.load %p1[%v9] : memref<32xf32>, vector<8xf32>
      %v11 = math.fma %v7, %v10, %v4 : vector<8xf32>
      %v13 = memref.load %p0[%v12] : memref<4xf32>
      %v14 = vector.broadcast %v13 : f32 to vector<8xf32>
      %v15 = math.fma %v14, %v6, %v4 : vector<8xf32>
      %v16 = math.fma %v14, %v10, %v4 : vector<8xf32>
      %v18 = memref.load %p0[%v17] : memref<4xf32>
      %v20 = vector.load %p1[%v19] : memref<32xf32>, vector<8xf32>
      %v21 = vector.broadcast %v18 : f32 to vector<8xf32>
      %v22 = math.fma %v21, %v20, %v8 : vector<8xf32>
      %v24 = vector.load %p1[%v23] : memref<32xf32>, vector<8xf32>
      %v25 = math.fma %v21, %v24, %v11 : vector<8xf32>
      %v27 = memref.load %p0[%v26] : memref<4xf32>
      %v28 = vector.broadcast %v27 : f32 to vector<8xf32>
      %v29 = math.fma %v28, %v20, %v15 : vector<8xf32>
      %v30 = math.fma %v28, %v24, %v16 : vector<8xf32>
      %v31 = vector.load %p2[%v1] : memref<16xf32>, vector<8xf32>
      %v32 = arith.addf %v22, %v31 : vector<8xf32>
      %v33 = arith.maximumf %v32, %v4 fastmath<nsz> : vector<8xf32>
      vector.store %v33, %p3[%v1] : memref<32xf32>, vector<8xf32>
      %v34 = vector.load %p2[%v9] : memref<16xf32>, vector<8xf32>
      %v35 = arith.addf %v25, %v34 : vector<8xf32>
      %v36 = arith.maximumf %v35, %v4 fastmath<nsz> : vector<8xf32>
      vector.store %v36, %p3[%v9] : memref<32xf32>, vector<8xf32>
      %v37 = arith.addf %v29, %v31 : vector<8xf32>
      %v38 = arith.maximumf %v37, %v4 fastmath<nsz> : vector<8xf32>
      vector.store %v38, %p3[%v19] : memref<32xf32>, vector<8xf32>
      %v39 = arith.addf %v30, %v34 : vector<8xf32>
      %v40 = arith.maximumf %v39, %v4 fastmath<nsz> : vector<8xf32>
      vector.store %v40, %p3[%v23] : memref<32xf32>, vector<8xf32>
    }
    return
  }
}

// LEVEL 5: neon
module {
  func.func @matmul_add_relu_39f892fd9d(%p0: memref<4xf32>, %p1: memref<32xf32>, %p2: memref<16xf32>, %p3: memref<32xf32> {llvm.noalias}, %scratch: memref<1xi8> {llvm.noalias}, %tid: index, %nt: index) {
    %v1 = arith.constant 0 : index
    %v3 = arith.constant 0.0 : f32
    %v9 = arith.constant 4 : index
    %v12 = arith.constant 8 : index
    %v15 = arith.constant 12 : index
    %v18 = arith.constant 2 : index
    %v25 = arith.constant 1 : index
    %v27 = arith.constant 16 : index
    %v31 = arith.constant 20 : index
    %v34 = arith.constant 24 : index
    %v37 = arith.constant 28 : index
    %v40 = arith.constant 3 : index
    %v2 = arith.cmpi eq, %tid, %v1 : index
    scf.if %v2 {
      %v4 = vector.broadcast %v3 : f32 to vector<4xf32>
      %v5 = memref.load %p0[%v1] : memref<4xf32>
      %v6 = vector.load %p1[%v1] : memref<32xf32>, vector<4xf32>
      %v7 = vector.broadcast %v5 : f32 to vector<4xf32>
      %v8 = math.fma %v7, %v6, %v4 : vector<4xf32>
      %v10 = vector.load %p1[%v9] : memref<32xf32>, vector<4xf32>
      %v11 = math.fma %v7, %v10, %v4 : vector<4xf32>
      %v13 = vector.load %p1[%v12] : memref<32xf32>, vector<4xf32>
      %v14 = math.fma %v7, %v13, %v4 : vector<4xf32>
      %v16 = vector.load %p1[%v15] : memref<32xf32>, vector<4xf32>
      %v17 = math.fma %v7, %v16, %v4 : vector<4xf32>
      %v19 = memref.load %p0[%v18] : memref<4xf32>
      %v20 = vector.broadcast %v19 : f32 to vector<4xf32>
      %v21 = math.fma %v20, %v6, %v4 : vector<4xf32>
      %v22 = math.fma %v20, %v10, %v4 : vector<4xf32>
      %v23 = math.fma %v20, %v13, %v4 : vector<4xf32>
      %v24 = math.fma %v20, %v16, %v4 : vector<4xf32>
      %v26 = memref.load %p0[%v25] : memref<4xf32>
      %v28 = vector.load %p1[%v27] : memref<32xf32>, vector<4xf32>
      %v29 = vector.broadcast %v26 : f32 to vector<4xf32>
      %v30 = math.fma %v29, %v28, %v8 : vector<4xf32>
      %v32 = vector.load %p1[%v31] : memref<32xf32>, vector<4xf32>
      %v33 = math.fma %v29, %v32, %v11 : vector<4xf32>
      %v35 = vector.load %p1[%v34] : memref<32xf32>, vector<4xf32>
      %v36 = math.fma %v29, %v35, %v14 : vector<4xf32>
      %v38 = vector.load %p1[%v37] : memref<32xf32>, vector<4xf32>
      %v39 = math.fma %v29, %v38, %v17 : vector<4xf32>
      %v41 = memref.load %p0[%v40] : memref<4xf32>
      %v42 = vector.broadcast %v41 : f32 to vector<4xf32>
      %v43 = math.fma %v42, %v28, %v21 : vector<4xf32>
      %v44 = math.fma %v42, %v32, %v22 : vector<4xf32>
      %v45 = math.fma %v42, %v35, %v23 : vector<4xf32>
      %v46 = math.fma %v42, %v38, %v24 : vector<4xf32>
      %v47 = vector.load %p2[%v1] : memref<16xf32>, vector<4xf32>
      %v48 = arith.addf %v30, %v47 : vector<4xf32>
      %v49 = arith.maximumf %v48, %v4 fastmath<nsz> : vector<4xf32>
      vector.store %v49, %p3[%v1] : memref<32xf32>, vector<4xf32>
      %v50 = vector.load %p2[%v9] : memref<16xf32>, vector<4xf32>
      %v51 = arith.addf %v33, %v50 : vector<4xf32>
      %v52 = arith.maximumf %v51, %v4 fastmath<nsz> : vector<4xf32>
      vector.store %v52, %p3[%v9] : memref<32xf32>, vector<4xf32>
      %v53 = vector.load %p2[%v12] : memref<16xf32>, vector<4xf32>
      %v54 = arith.addf %v36, %v53 : vector<4xf32>
      %v55 = arith.maximumf %v54, %v4 fastmath<nsz> : vector<4xf32>
      vector.store %v55, %p3[%v12] : memref<32xf32>, vector<4xf32>
      %v56 = vector.load %p2[%v15] : memref<16xf32>, vector<4xf32>
      %v57 = arith.addf %v39, %v56 : vector<4xf32>
      %v58 = arith.maximumf %v57, %v4 fastmath<nsz> : vector<4xf32>
      vector.store %v58, %p3[%v15] : memref<32xf32>, vector<4xf32>
      %v59 = arith.addf %v43, %v47 : vector<4xf32>
      %v60 = arith.maximumf %v59, %v4 fastmath<nsz> : vector<4xf32>
      vector.store %v60, %p3[%v27] : memref<32xf32>, vector<4xf32>
      %v61 = arith.addf %v44, %v50 : vector<4xf32>
      %v62 = arith.maximumf %v61, %v4 fastmath<nsz> : vector<4xf32>
      vector.store %v62, %p3[%v31] : memref<32xf32>, vector<4xf32>
      %v63 = arith.addf %v45, %v53 : vector<4xf32>
      %v64 = arith.maximumf %v63, %v4 fastmath<nsz> : vector<4xf32>
      vector.store %v64, %p3[%v34] : memref<32xf32>, vector<4xf32>
      %v65 = arith.addf %v46, %v56 : vector<4xf32>
      %v66 = arith.maximumf %v65, %v4 fastmath<nsz> : vector<4xf32>
      vector.store %v66, %p3[%v37] : memref<32xf32>, vector<4xf32>
    }
    return
  }
}
