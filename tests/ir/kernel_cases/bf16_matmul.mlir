// A product in bf16: by pairs where the processor multiplies them, else in f32.
// CODE zen4
// OPTIONS precision=bf16
// CONSTANT w f32 4x16
func.func @main(%x: tensor<3x4xf32>) -> tensor<3x16xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<4x16xf32>
  %0 = "tw.matmul"(%x, %w) : (tensor<3x4xf32>, tensor<4x16xf32>) -> tensor<3x16xf32>
  return %0 : tensor<3x16xf32>
}

// LEVEL 3: zen4 avx2 neon
func.func private @cast_4a27812d73(%arg0: tensor<3x4xf32>) -> tensor<3x4xbf16> {
  %0 = tensor.empty() : tensor<3x4xbf16>
  %1 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%arg0 : tensor<3x4xf32>) outs(%0 : tensor<3x4xbf16>) attrs =  {tw.op = "cast"} {
  ^bb0(%in: f32, %out: bf16):
    %2 = arith.truncf %in : f32 to bf16
    linalg.yield %2 : bf16
  } -> tensor<3x4xbf16>
  return %1 : tensor<3x4xbf16>
}

func.func private @matmul_446bc28062(%arg0: tensor<3x4xbf16>, %arg1: tensor<4x16xbf16> {tw.constant}) -> tensor<3x16xf32> {
  %cst = arith.constant 0.000000e+00 : f32
  %0 = tensor.empty() : tensor<3x16xf32>
  %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<3x16xf32>) -> tensor<3x16xf32>
  %2 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%arg0, %arg1 : tensor<3x4xbf16>, tensor<4x16xbf16>) outs(%1 : tensor<3x16xf32>) attrs =  {tw.op = "matmul"} {
  ^bb0(%in: bf16, %in_0: bf16, %out: f32):
    %3 = arith.extf %in : bf16 to f32
    %4 = arith.extf %in_0 : bf16 to f32
    %5 = arith.mulf %3, %4 : f32
    %6 = arith.addf %out, %5 : f32
    linalg.yield %6 : f32
  } -> tensor<3x16xf32>
  return %2 : tensor<3x16xf32>
}

// LEVEL 4: zen4
# rule: elementwise
# loops: i0, j0
# blocks: s0
# buffers: p0, p1
i0_j0 = s.fuse('i0', 'j0')
s.vectorize('i0_j0')

def cast_4a27812d73(p0: f32[3, 4], p1: out(bf16[3, 4])):
    for i0_j0 in vector(12, lanes=16):
        s0: p1[i0_j0 // 4, i0_j0 % 4] = truncf[bf16](p0[i0_j0 // 4, i0_j0 % 4])

# rule: bf16-contraction
# loops: i0, j0, k0
# blocks: s0
# buffers: p0, p1, p2
s0_w = s.cache_write('s0')  # makes p2_c
j0_o, j0_i = s.split('j0', 16)
i0_o, i0_i = s.split('i0', 3)
k0_o, k0_i = s.split('k0', 2)
s.reorder('j0_o', 'i0_o', 'k0_o', 'k0_i', 'i0_i', 'j0_i')
s.pack('p1', ((2,), (16,)), (2, 0, 3, 1))
s.dot('s0', 'k0_i')
j0_o_i0_o = s.fuse('j0_o', 'i0_o')
m_p2_c_a, n_p2_c_a = s.reverse_compute_at('s0_w', 'j0_o_i0_o')
s.set_scope('p2_c', 'register')
s.unroll('i0_i')
j0_i_o, j0_i_i = s.split('j0_i', 16)
s.unroll('j0_i_o')
s.vectorize('j0_i_i')
s.unroll('m_p2_c_a')
n_p2_c_a_o, n_p2_c_a_i = s.split('n_p2_c_a', 16)
s.unroll('n_p2_c_a_o')
s.vectorize('n_p2_c_a_i')
s.unroll('k0_o')
s.parallel('j0_o_i0_o')

def matmul_446bc28062(
    p0: bf16[3, 4],
    p1: packed(bf16[1, 2, 16, 2], splits=((2,), (16,)), order=(2, 0, 3, 1)),
    p2: out(f32[3, 16]),
):
    p2_c = register(f32[3, 16])
    for i0_i in unroll(3):
        for j0_i_i in vector(16, lanes=16):
            s0.init: p2_c[i0_i, j0_i_i] = f32(0.0)
    for k0_o in unroll(2):
        for i0_i in unroll(3):
            for j0_i_i in vector(16, lanes=16):
                s0: p2_c[i0_i, j0_i_i] = addf(p2_c[i0_i, j0_i_i], dot2[f32](p0[i0_i, k0_o * 2], p1[0, k0_o, j0_i_i, 0], p0[i0_i, k0_o * 2 + 1], p1[0, k0_o, j0_i_i, 1]))
    for m_p2_c_a in unroll(3):
        for n_p2_c_a_i in vector(16, lanes=16):
            s0_w: p2[m_p2_c_a, n_p2_c_a_i] = p2_c[m_p2_c_a, n_p2_c_a_i]

// LEVEL 4: avx2
# rule: elementwise
# loops: i0, j0
# blocks: s0
# buffers: p0, p1
i0_j0 = s.fuse('i0', 'j0')
i0_j0_o, i0_j0_i = s.split('i0_j0', 8)
s.vectorize('i0_j0_i')
s.parallel('i0_j0_o')

def cast_4a27812d73(p0: f32[3, 4], p1: out(bf16[3, 4])):
    for i0_j0_o in thread(2):
        if i0_j0_o < 1:
            for i0_j0_i in vector(8, lanes=8):
                s0: p1[i0_j0_o * 2 + i0_j0_i // 4, i0_j0_i % 4] = truncf[bf16](p0[i0_j0_o * 2 + i0_j0_i // 4, i0_j0_i % 4])
        else:
            for i0_j0_i in vector(4, lanes=8):
                s0: p1[2, i0_j0_i] = truncf[bf16](p0[2, i0_j0_i])

# rule: contraction
# loops: i0, j0, k0
# blocks: s0
# buffers: p0, p1, p2
s0_w = s.cache_write('s0')  # makes p2_c
j0_o, j0_i = s.split('j0', 16)
i0_o, i0_i = s.split('i0', 3)
s.reorder('j0_o', 'i0_o', 'k0', 'i0_i', 'j0_i')
s.pack('p1', ((), (16,)), (1, 0, 2))
j0_o_i0_o = s.fuse('j0_o', 'i0_o')
m_p2_c_a, n_p2_c_a = s.reverse_compute_at('s0_w', 'j0_o_i0_o')
s.set_scope('p2_c', 'register')
s.unroll('i0_i')
j0_i_o, j0_i_i = s.split('j0_i', 8)
s.unroll('j0_i_o')
s.vectorize('j0_i_i')
s.unroll('m_p2_c_a')
n_p2_c_a_o, n_p2_c_a_i = s.split('n_p2_c_a', 8)
s.unroll('n_p2_c_a_o')
s.vectorize('n_p2_c_a_i')
s.unroll('k0')
s.parallel('j0_o_i0_o')

def matmul_446bc28062(
    p0: bf16[3, 4],
    p1: packed(bf16[1, 4, 16], splits=((), (16,)), order=(1, 0, 2)),
    p2: out(f32[3, 16]),
):
    p2_c = register(f32[3, 16])
    for i0_i in unroll(3):
        for j0_i_o in unroll(2):
            for j0_i_i in vector(8, lanes=8):
                s0.init: p2_c[i0_i, j0_i_o * 8 + j0_i_i] = f32(0.0)
    for k0 in unroll(4):
        for i0_i in unroll(3):
            for j0_i_o in unroll(2):
                for j0_i_i in vector(8, lanes=8):
                    s0: p2_c[i0_i, j0_i_o * 8 + j0_i_i] = addf(p2_c[i0_i, j0_i_o * 8 + j0_i_i], mulf(extf[f32](p0[i0_i, k0]), extf[f32](p1[0, k0, j0_i_o * 8 + j0_i_i])))
    for m_p2_c_a in unroll(3):
        for n_p2_c_a_o in unroll(2):
            for n_p2_c_a_i in vector(8, lanes=8):
                s0_w: p2[m_p2_c_a, n_p2_c_a_o * 8 + n_p2_c_a_i] = p2_c[m_p2_c_a, n_p2_c_a_o * 8 + n_p2_c_a_i]

// LEVEL 4: neon
# rule: elementwise
# loops: i0, j0
# blocks: s0
# buffers: p0, p1
i0_j0 = s.fuse('i0', 'j0')
i0_j0_o, i0_j0_i = s.split('i0_j0', 4)
s.vectorize('i0_j0_i')
s.parallel('i0_j0_o')

def cast_4a27812d73(p0: f32[3, 4], p1: out(bf16[3, 4])):
    for i0_j0_o in thread(3):
        for i0_j0_i in vector(4, lanes=4):
            s0: p1[i0_j0_o, i0_j0_i] = truncf[bf16](p0[i0_j0_o, i0_j0_i])

# rule: contraction
# loops: i0, j0, k0
# blocks: s0
# buffers: p0, p1, p2
s0_w = s.cache_write('s0')  # makes p2_c
j0_o, j0_i = s.split('j0', 16)
i0_o, i0_i = s.split('i0', 2)
s.reorder('j0_o', 'i0_o', 'k0', 'i0_i', 'j0_i')
s.pack('p1', ((), (16,)), (1, 0, 2))
j0_o_i0_o = s.fuse('j0_o', 'i0_o')
m_p2_c_a, n_p2_c_a = s.reverse_compute_at('s0_w', 'j0_o_i0_o')
s.set_scope('p2_c', 'register')
s.unroll('i0_i')
j0_i_o, j0_i_i = s.split('j0_i', 4)
s.unroll('j0_i_o')
s.vectorize('j0_i_i')
s.unroll('m_p2_c_a')
n_p2_c_a_o, n_p2_c_a_i = s.split('n_p2_c_a', 4)
s.unroll('n_p2_c_a_o')
s.vectorize('n_p2_c_a_i')
s.unroll('k0')
s.parallel('j0_o_i0_o')

def matmul_446bc28062(
    p0: bf16[3, 4],
    p1: packed(bf16[1, 4, 16], splits=((), (16,)), order=(1, 0, 2)),
    p2: out(f32[3, 16]),
):
    for j0_o_i0_o in thread(2):
        if j0_o_i0_o < 1:
            p2_c = register(f32[2, 16])
            for i0_i in unroll(2):
                for j0_i_o in unroll(4):
                    for j0_i_i in vector(4, lanes=4):
                        s0.init: p2_c[i0_i, j0_i_o * 4 + j0_i_i] = f32(0.0)
            for k0 in unroll(4):
                for i0_i in unroll(2):
                    for j0_i_o in unroll(4):
                        for j0_i_i in vector(4, lanes=4):
                            s0: p2_c[i0_i, j0_i_o * 4 + j0_i_i] = addf(p2_c[i0_i, j0_i_o * 4 + j0_i_i], mulf(extf[f32](p0[j0_o_i0_o * 2 + i0_i, k0]), extf[f32](p1[0, k0, j0_i_o * 4 + j0_i_i])))
            for m_p2_c_a in unroll(2):
                for n_p2_c_a_o in unroll(4):
                    for n_p2_c_a_i in vector(4, lanes=4):
                        s0_w: p2[j0_o_i0_o * 2 + m_p2_c_a, n_p2_c_a_o * 4 + n_p2_c_a_i] = p2_c[m_p2_c_a, n_p2_c_a_o * 4 + n_p2_c_a_i]
        else:
            p2_c = register(f32[2, 16])
            for j0_i_o in unroll(4):
                for j0_i_i in vector(4, lanes=4):
                    s0.init: p2_c[0, j0_i_o * 4 + j0_i_i] = f32(0.0)
            for k0 in unroll(4):
                for j0_i_o in unroll(4):
                    for j0_i_i in vector(4, lanes=4):
                        s0: p2_c[0, j0_i_o * 4 + j0_i_i] = addf(p2_c[0, j0_i_o * 4 + j0_i_i], mulf(extf[f32](p0[2, k0]), extf[f32](p1[0, k0, j0_i_o * 4 + j0_i_i])))
            for n_p2_c_a_o in unroll(4):
                for n_p2_c_a_i in vector(4, lanes=4):
                    s0_w: p2[2, n_p2_c_a_o * 4 + n_p2_c_a_i] = p2_c[0, n_p2_c_a_o * 4 + n_p2_c_a_i]

// LEVEL 5: zen4
module {
  func.func @cast_4a27812d73(%p0: memref<12xf32>, %p1: memref<12xbf16> {llvm.noalias}, %scratch: memref<1xi8> {llvm.noalias}, %tid: index, %nt: index) {
    %v1 = arith.constant 0 : index
    %v3 = vector.constant_mask [12] : vector<16xi1>
    %v4 = arith.constant dense<0.0> : vector<16xf32>
    %v2 = arith.cmpi eq, %tid, %v1 : index
    scf.if %v2 {
      %v5 = vector.maskedload %p0[%v1], %v3, %v4 : memref<12xf32>, vector<16xi1>, vector<16xf32> into vector<16xf32>
      %v6 = arith.truncf %v5 : vector<16xf32> to vector<16xbf16>
      vector.maskedstore %p1[%v1], %v3, %v6 : memref<12xbf16>, vector<16xi1>, vector<16xbf16>
    }
    return
  }
}

module {
  func.func @matmul_446bc28062(%p0: memref<12xbf16>, %p1: memref<64xbf16>, %p2: memref<48xf32> {llvm.noalias}, %scratch: memref<1xi8> {llvm.noalias}, %tid: index, %nt: index) {
    %v1 = arith.constant 0 : index
    %v3 = arith.constant 0.0 : f32
    %v6 = arith.constant 15 : index
    %v9 = arith.constant 1 : index
    %v11 = arith.constant 16 : index
    %v20 = arith.constant 4 : index
    %v26 = arith.constant 8 : index
    %v32 = arith.constant 32 : index
    %v34 = arith.constant 47 : index
    %v37 = arith.constant 33 : index
    %v39 = arith.constant 48 : index
    %v42 = arith.constant 2 : index
    %v49 = arith.constant 6 : index
    %v55 = arith.constant 10 : index
    %v2 = arith.cmpi eq, %tid, %v1 : index
    scf.if %v2 {
      %v4 = vector.broadcast %v3 : f32 to vector<16xf32>
      %v5 = vector.load %p1[%v1] : memref<64xbf16>, vector<16xbf16>
      %v7 = vector.load %p1[%v6] : memref<64xbf16>, vector<16xbf16>
      %v8 = vector.shuffle %v5, %v7 [0, 2, 4, 6, 8, 10, 12, 14, 17, 19, 21, 23, 25, 27, 29, 31] : vector<16xbf16>, vector<16xbf16>
      %v10 = vector.load %p1[%v9] : memref<64xbf16>, vector<16xbf16>
      %v12 = vector.load %p1[%v11] : memref<64xbf16>, vector<16xbf16>
      %v13 = vector.shuffle %v10, %v12 [0, 2, 4, 6, 8, 10, 12, 14, 17, 19, 21, 23, 25, 27, 29, 31] : vector<16xbf16>, vector<16xbf16>
      %v14 = vector.load %p0[%v1] : memref<12xbf16>, vector<2xbf16>
      %v15 = vector.bitcast %v14 : vector<2xbf16> to vector<1xi32>
      %v16 = vector.broadcast %v15 : vector<1xi32> to vector<16xi32>
      %v17 = vector.bitcast %v16 : vector<16xi32> to vector<32xbf16>
      %v18 = vector.load %p1[%v1] : memref<64xbf16>, vector<32xbf16>
      %v19 = llvm.call_intrinsic "llvm.x86.avx512bf16.dpbf16ps.512"(%v4, %v17, %v18) : (vector<16xf32>, vector<32xbf16>, vector<32xbf16>) -> vector<16xf32>
      %v21 = vector.load %p0[%v20] : memref<12xbf16>, vector<2xbf16>
      %v22 = vector.bitcast %v21 : vector<2xbf16> to vector<1xi32>
      %v23 = vector.broadcast %v22 : vector<1xi32> to vector<16xi32>
      %v24 = vector.bitcast %v23 : vector<16xi32> to vector<32xbf16>
      %v25 = llvm.call_intrinsic "llvm.x86.avx512bf16.dpbf16ps.512"(%v4, %v24, %v18) : (vector<16xf32>, vector<32xbf16>, vector<32xbf16>) -> vector<16xf32>
      %v27 = vector.load %p0[%v26] : memref<12xbf16>, vector<2xbf16>
      %v28 = vector.bitcast %v27 : vector<2xbf16> to vector<1xi32>
      %v29 = vector.broadcast %v28 : vector<1xi32> to vector<16xi32>
      %v30 = vector.bitcast %v29 : vector<16xi32> to vector<32xbf16>
      %v31 = llvm.call_intrinsic "llvm.x86.avx512bf16.dpbf16ps.512"(%v4, %v30, %v18) : (vector<16xf32>, vector<32xbf16>, vector<32xbf16>) -> vector<16xf32>
      %v33 = vector.load %p1[%v32] : memref<64xbf16>, vector<16xbf16>
      %v35 = vector.load %p1[%v34] : memref<64xbf16>, vector<16xbf16>
      %v36 = vector.shuffle %v33, %v35 [0, 2, 4, 6, 8, 10, 12, 14, 17, 19, 21, 23, 25, 27, 29, 31] : vector<16xbf16>, vector<16xbf16>
      %v38 = vector.load %p1[%v37] : memref<64xbf16>, vector<16xbf16>
      %v40 = vector.load %p1[%v39] : memref<64xbf16>, vector<16xbf16>
      %v41 = vector.shuffle %v38, %v40 [0, 2, 4, 6, 8, 10, 12, 14, 17, 19, 21, 23, 25, 27, 29, 31] : vector<16xbf16>, vector<16xbf16>
      %v43 = vector.load %p0[%v42] : memref<12xbf16>, vector<2xbf16>
      %v44 = vector.bitcast %v43 : vector<2xbf16> to vector<1xi32>
      %v45 = vector.broadcast %v44 : vector<1xi32> to vector<16xi32>
      %v46 = vector.bitcast %v45 : vector<16xi32> to vector<32xbf16>
      %v47 = vector.load %p1[%v32] : memref<64xbf16>, vector<32xbf16>
      %v48 = llvm.call_intrinsic "llvm.x86.avx512bf16.dpbf16ps.512"(%v19, %v46, %v47) : (vector<16xf32>, vector<32xbf16>, vector<32xbf16>) -> vector<16xf32>
      %v50 = vector.load %p0[%v49] : memref<12xbf16>, vector<2xbf16>
      %v51 = vector.bitcast %v50 : vector<2xbf16> to vector<1xi32>
      %v52 = vector.broadcast %v51 : vector<1xi32> to vector<16xi32>
      %v53 = vector.bitcast %v52 : vector<16xi32> to vector<32xbf16>
      %v54 = llvm.call_intrinsic "llvm.x86.avx512bf16.dpbf16ps.512"(%v25, %v53, %v47) : (vector<16xf32>, vector<32xbf16>, vector<32xbf16>) -> vector<16xf32>
      %v56 = vector.load %p0[%v55] : memref<12xbf16>, vector<2xbf16>
      %v57 = vector.bitcast %v56 : vector<2xbf16> to vector<1xi32>
      %v58 = vector.broadcast %v57 : vector<1xi32> to vector<16xi32>
      %v59 = vector.bitcast %v58 : vector<16xi32> to vector<32xbf16>
      %v60 = llvm.call_intrinsic "llvm.x86.avx512bf16.dpbf16ps.512"(%v31, %v59, %v47) : (vector<16xf32>, vector<32xbf16>, vector<32xbf16>) -> vector<16xf32>
      vector.store %v48, %p2[%v1] : memref<48xf32>, vector<16xf32>
      vector.store %v54, %p2[%v11] : memref<48xf32>, vector<16xf32>
      vector.store %v60, %p2[%v32] : memref<48xf32>, vector<16xf32>
    }
    return
  }
}
