// Softmax of rows: each exponential is computed once, and the rows are multiplied by one reciprocal.
// CODE zen4
func.func @main(%x: tensor<6x16xf32>) -> tensor<6x16xf32> {
  %0 = "tw.softmax"(%x) {axis = 1} : (tensor<6x16xf32>) -> tensor<6x16xf32>
  return %0 : tensor<6x16xf32>
}

// LEVEL 3: zen4 avx2 neon
func.func private @softmax_be53fe6d3f(%arg0: tensor<6x16xf32>) -> tensor<6x16xf32> {
  %cst = arith.constant 0xFF800000 : f32
  %0 = tensor.empty() : tensor<6x1xf32>
  %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<6x1xf32>) -> tensor<6x1xf32>
  %2 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, 0)>], iterator_types = ["parallel", "reduction"]} ins(%arg0 : tensor<6x16xf32>) outs(%1 : tensor<6x1xf32>) attrs =  {tw.op = "softmax"} {
  ^bb0(%in: f32, %out: f32):
    %12 = arith.maxnumf %in, %out : f32
    linalg.yield %12 : f32
  } -> tensor<6x1xf32>
  %3 = tensor.empty() : tensor<6x16xf32>
  %4 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, 0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%arg0, %2 : tensor<6x16xf32>, tensor<6x1xf32>) outs(%3 : tensor<6x16xf32>) attrs =  {tw.op = "softmax"} {
  ^bb0(%in: f32, %in_1: f32, %out: f32):
    %12 = arith.subf %in, %in_1 : f32
    %13 = math.exp %12 : f32
    linalg.yield %13 : f32
  } -> tensor<6x16xf32>
  %cst_0 = arith.constant 0.000000e+00 : f32
  %5 = tensor.empty() : tensor<6x1xf32>
  %6 = linalg.fill ins(%cst_0 : f32) outs(%5 : tensor<6x1xf32>) -> tensor<6x1xf32>
  %7 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, 0)>], iterator_types = ["parallel", "reduction"]} ins(%4 : tensor<6x16xf32>) outs(%6 : tensor<6x1xf32>) attrs =  {tw.op = "softmax"} {
  ^bb0(%in: f32, %out: f32):
    %12 = arith.addf %in, %out : f32
    linalg.yield %12 : f32
  } -> tensor<6x1xf32>
  %8 = tensor.empty() : tensor<6x1xf32>
  %9 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%7 : tensor<6x1xf32>) outs(%8 : tensor<6x1xf32>) attrs =  {tw.op = "softmax"} {
  ^bb0(%in: f32, %out: f32):
    %cst_1 = arith.constant 1.000000e+00 : f32
    %12 = arith.divf %cst_1, %in : f32
    linalg.yield %12 : f32
  } -> tensor<6x1xf32>
  %10 = tensor.empty() : tensor<6x16xf32>
  %11 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, 0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%4, %9 : tensor<6x16xf32>, tensor<6x1xf32>) outs(%10 : tensor<6x16xf32>) attrs =  {tw.op = "softmax"} {
  ^bb0(%in: f32, %in_1: f32, %out: f32):
    %12 = arith.mulf %in, %in_1 : f32
    linalg.yield %12 : f32
  } -> tensor<6x16xf32>
  return %11 : tensor<6x16xf32>
}

// LEVEL 4: zen4
# rule: rows
# loops: i0, j0, i1, j1, i2, j2, i3, i4, j4
# blocks: s0, s1, s2, s3, s4
# buffers: p0, p1, t0, t1, t2, t3
s.compute_at('s3', 'i4')
s.compute_at('s2', 'i4')
j1_a, = s.compute_at('s1', 'i4')
s.compute_at('s0', 'i4')
j0_o, j0_i = s.split('j0', 16)
s0_r = s.rfactor('s0', 'j0_i')  # makes t0_r
s.set_scope('t0_r', 'register')
j0_i_o, j0_i_i = s.split('j0_i', 16)
s.unroll('j0_i_o')
s.vectorize('j0_i_i')
j0_i_r_o, j0_i_r_i = s.split('j0_i_r', 16)
s.unroll('j0_i_r_o')
s.vectorize('j0_i_r_i')
s.vectorize('j1_a')
j2_o, j2_i = s.split('j2', 16)
s2_r = s.rfactor('s2', 'j2_i')  # makes t2_r
s.set_scope('t2_r', 'register')
j2_i_o, j2_i_i = s.split('j2_i', 16)
s.unroll('j2_i_o')
s.vectorize('j2_i_i')
j2_i_r_o, j2_i_r_i = s.split('j2_i_r', 16)
s.unroll('j2_i_r_o')
s.vectorize('j2_i_r_i')
s.vectorize('j4')
s.parallel('i4')

def softmax_be53fe6d3f(p0: f32[6, 16], p1: out(f32[6, 16])):
    for i4 in thread(6):
        t0_r = register(f32[16])
        for j0_i_i in vector(16, lanes=16):
            s0.init: t0_r[j0_i_i] = f32(-inf)
        for j0_i_i in vector(16, lanes=16):
            s0: t0_r[j0_i_i] = maxnumf(t0_r[j0_i_i], p0[i4, j0_i_i])
        t1 = local(f32[1, 16])
        with local(f32[1, 1]) as t0:
            s0_r.init: t0[0, 0] = f32(-inf)
            for j0_i_r_i in vector(16, lanes=16):
                s0_r: t0[0, 0] = maxnumf(t0[0, 0], t0_r[j0_i_r_i])
            for j1_a in vector(16, lanes=16):
                s1: t1[0, j1_a] = exp(subf(p0[i4, j1_a], t0[0, 0]))
        t2_r = register(f32[16])
        for j2_i_i in vector(16, lanes=16):
            s2.init: t2_r[j2_i_i] = f32(0.0)
        for j2_i_i in vector(16, lanes=16):
            s2: t2_r[j2_i_i] = addf(t2_r[j2_i_i], t1[0, j2_i_i])
        t3 = local(f32[1, 1])
        with local(f32[1, 1]) as t2:
            s2_r.init: t2[0, 0] = f32(0.0)
            for j2_i_r_i in vector(16, lanes=16):
                s2_r: t2[0, 0] = addf(t2[0, 0], t2_r[j2_i_r_i])
            s3: t3[0, 0] = divf(f32(1.0), t2[0, 0])
        for j4 in vector(16, lanes=16):
            s4: p1[i4, j4] = mulf(t1[0, j4], t3[0, 0])

// LEVEL 4: avx2
# rule: rows
# loops: i0, j0, i1, j1, i2, j2, i3, i4, j4
# blocks: s0, s1, s2, s3, s4
# buffers: p0, p1, t0, t1, t2, t3
s.compute_at('s3', 'i4')
s.compute_at('s2', 'i4')
j1_a, = s.compute_at('s1', 'i4')
s.compute_at('s0', 'i4')
j0_o, j0_i = s.split('j0', 16)
s0_r = s.rfactor('s0', 'j0_i')  # makes t0_r
s.set_scope('t0_r', 'register')
j0_i_o, j0_i_i = s.split('j0_i', 8)
s.unroll('j0_i_o')
s.vectorize('j0_i_i')
j0_i_r_o, j0_i_r_i = s.split('j0_i_r', 8)
s.unroll('j0_i_r_o')
s.vectorize('j0_i_r_i')
j1_a_o, j1_a_i = s.split('j1_a', 16)
j1_a_i_o, j1_a_i_i = s.split('j1_a_i', 8)
s.unroll('j1_a_i_o')
s.vectorize('j1_a_i_i')
j2_o, j2_i = s.split('j2', 16)
s2_r = s.rfactor('s2', 'j2_i')  # makes t2_r
s.set_scope('t2_r', 'register')
j2_i_o, j2_i_i = s.split('j2_i', 8)
s.unroll('j2_i_o')
s.vectorize('j2_i_i')
j2_i_r_o, j2_i_r_i = s.split('j2_i_r', 8)
s.unroll('j2_i_r_o')
s.vectorize('j2_i_r_i')
j4_o, j4_i = s.split('j4', 16)
j4_i_o, j4_i_i = s.split('j4_i', 8)
s.unroll('j4_i_o')
s.vectorize('j4_i_i')
j1_a_o = s.merge('j1_a_o', 'j2_o')
s.pad('t1', 8)
s.parallel('i4')

def softmax_be53fe6d3f(p0: f32[6, 16], p1: out(f32[6, 16])):
    for i4 in thread(6):
        t0_r = register(f32[16])
        for j0_i_o in unroll(2):
            for j0_i_i in vector(8, lanes=8):
                s0.init: t0_r[j0_i_o * 8 + j0_i_i] = f32(-inf)
        for j0_i_o in unroll(2):
            for j0_i_i in vector(8, lanes=8):
                s0: t0_r[j0_i_o * 8 + j0_i_i] = maxnumf(t0_r[j0_i_o * 8 + j0_i_i], p0[i4, j0_i_o * 8 + j0_i_i])
        t1 = local(f32[1, 16])
        t2_r = register(f32[16])
        with local(f32[1, 1]) as t0:
            s0_r.init: t0[0, 0] = f32(-inf)
            for j0_i_r_o in unroll(2):
                for j0_i_r_i in vector(8, lanes=8):
                    s0_r: t0[0, 0] = maxnumf(t0[0, 0], t0_r[j0_i_r_o * 8 + j0_i_r_i])
            for j2_i_o in unroll(2):
                for j2_i_i in vector(8, lanes=8):
                    s2.init: t2_r[j2_i_o * 8 + j2_i_i] = f32(0.0)
            for j1_a_i_o in unroll(2):
                for j1_a_i_i in vector(8, lanes=8):
                    s1: t1[0, j1_a_i_o * 8 + j1_a_i_i] = exp(subf(p0[i4, j1_a_i_o * 8 + j1_a_i_i], t0[0, 0]))
            for j2_i_o in unroll(2):
                for j2_i_i in vector(8, lanes=8):
                    s2: t2_r[j2_i_o * 8 + j2_i_i] = addf(t2_r[j2_i_o * 8 + j2_i_i], t1[0, j2_i_o * 8 + j2_i_i])
        t3 = local(f32[1, 1])
        with local(f32[1, 1]) as t2:
            s2_r.init: t2[0, 0] = f32(0.0)
            for j2_i_r_o in unroll(2):
                for j2_i_r_i in vector(8, lanes=8):
                    s2_r: t2[0, 0] = addf(t2[0, 0], t2_r[j2_i_r_o * 8 + j2_i_r_i])
            s3: t3[0, 0] = divf(f32(1.0), t2[0, 0])
        for j4_i_o in unroll(2):
            for j4_i_i in vector(8, lanes=8):
                s4: p1[i4, j4_i_o * 8 + j4_i_i] = mulf(t1[0, j4_i_o * 8 + j4_i_i], t3[0, 0])

// LEVEL 4: neon
# rule: rows
# loops: i0, j0, i1, j1, i2, j2, i3, i4, j4
# blocks: s0, s1, s2, s3, s4
# buffers: p0, p1, t0, t1, t2, t3
s.compute_at('s3', 'i4')
s.compute_at('s2', 'i4')
j1_a, = s.compute_at('s1', 'i4')
s.compute_at('s0', 'i4')
j0_o, j0_i = s.split('j0', 16)
s0_r = s.rfactor('s0', 'j0_i')  # makes t0_r
s.set_scope('t0_r', 'register')
j0_i_o, j0_i_i = s.split('j0_i', 4)
s.unroll('j0_i_o')
s.vectorize('j0_i_i')
j0_i_r_o, j0_i_r_i = s.split('j0_i_r', 4)
s.unroll('j0_i_r_o')
s.vectorize('j0_i_r_i')
j1_a_o, j1_a_i = s.split('j1_a', 16)
j1_a_i_o, j1_a_i_i = s.split('j1_a_i', 4)
s.unroll('j1_a_i_o')
s.vectorize('j1_a_i_i')
j2_o, j2_i = s.split('j2', 16)
s2_r = s.rfactor('s2', 'j2_i')  # makes t2_r
s.set_scope('t2_r', 'register')
j2_i_o, j2_i_i = s.split('j2_i', 4)
s.unroll('j2_i_o')
s.vectorize('j2_i_i')
j2_i_r_o, j2_i_r_i = s.split('j2_i_r', 4)
s.unroll('j2_i_r_o')
s.vectorize('j2_i_r_i')
j4_o, j4_i = s.split('j4', 16)
j4_i_o, j4_i_i = s.split('j4_i', 4)
s.unroll('j4_i_o')
s.vectorize('j4_i_i')
j1_a_o = s.merge('j1_a_o', 'j2_o')
s.pad('t1', 4)
s.parallel('i4')

def softmax_be53fe6d3f(p0: f32[6, 16], p1: out(f32[6, 16])):
    for i4 in thread(6):
        t0_r = register(f32[16])
        for j0_i_o in unroll(4):
            for j0_i_i in vector(4, lanes=4):
                s0.init: t0_r[j0_i_o * 4 + j0_i_i] = f32(-inf)
        for j0_i_o in unroll(4):
            for j0_i_i in vector(4, lanes=4):
                s0: t0_r[j0_i_o * 4 + j0_i_i] = maxnumf(t0_r[j0_i_o * 4 + j0_i_i], p0[i4, j0_i_o * 4 + j0_i_i])
        t1 = local(f32[1, 16])
        t2_r = register(f32[16])
        with local(f32[1, 1]) as t0:
            s0_r.init: t0[0, 0] = f32(-inf)
            for j0_i_r_o in unroll(4):
                for j0_i_r_i in vector(4, lanes=4):
                    s0_r: t0[0, 0] = maxnumf(t0[0, 0], t0_r[j0_i_r_o * 4 + j0_i_r_i])
            for j2_i_o in unroll(4):
                for j2_i_i in vector(4, lanes=4):
                    s2.init: t2_r[j2_i_o * 4 + j2_i_i] = f32(0.0)
            for j1_a_i_o in unroll(4):
                for j1_a_i_i in vector(4, lanes=4):
                    s1: t1[0, j1_a_i_o * 4 + j1_a_i_i] = exp(subf(p0[i4, j1_a_i_o * 4 + j1_a_i_i], t0[0, 0]))
            for j2_i_o in unroll(4):
                for j2_i_i in vector(4, lanes=4):
                    s2: t2_r[j2_i_o * 4 + j2_i_i] = addf(t2_r[j2_i_o * 4 + j2_i_i], t1[0, j2_i_o * 4 + j2_i_i])
        t3 = local(f32[1, 1])
        with local(f32[1, 1]) as t2:
            s2_r.init: t2[0, 0] = f32(0.0)
            for j2_i_r_o in unroll(4):
                for j2_i_r_i in vector(4, lanes=4):
                    s2_r: t2[0, 0] = addf(t2[0, 0], t2_r[j2_i_r_o * 4 + j2_i_r_i])
            s3: t3[0, 0] = divf(f32(1.0), t2[0, 0])
        for j4_i_o in unroll(4):
            for j4_i_i in vector(4, lanes=4):
                s4: p1[i4, j4_i_o * 4 + j4_i_i] = mulf(t1[0, j4_i_o * 4 + j4_i_i], t3[0, 0])

// LEVEL 5: zen4
module {
  func.func @softmax_be53fe6d3f(%p0: memref<96xf32>, %p1: memref<96xf32> {llvm.noalias}, %scratch: memref<192xi8> {llvm.noalias}, %tid: index, %nt: index) attributes {passthrough = ["tw-accumulates-in-memory"]} {
    %v1 = arith.constant 6 : index
    %v2 = arith.constant 1 : index
    %v9 = arith.constant 0xff800000 : f32
    %v11 = arith.constant 16 : index
    %v16 = arith.constant 0 : index
    %v18 = arith.constant 64 : index
    %v20 = arith.constant dense<0xff800000> : vector<16xf32>
    %v43 = arith.constant 1.4426950216293335 : f32
    %v44 = arith.constant 786432.0 : f32
    %v49 = arith.constant 1.0 : f32
    %v50 = arith.constant 1.0442737340927124 : f32
    %v51 = arith.constant 1.0905077457427979 : f32
    %v52 = arith.constant 1.1387885808944702 : f32
    %v53 = arith.constant 1.1892070770263672 : f32
    %v54 = arith.constant 1.2418577671051025 : f32
    %v55 = arith.constant 1.2968395948410034 : f32
    %v56 = arith.constant 1.3542555570602417 : f32
    %v57 = arith.constant 1.4142135381698608 : f32
    %v58 = arith.constant 1.4768261909484863 : f32
    %v59 = arith.constant 1.5422108173370361 : f32
    %v60 = arith.constant 1.610490322113037 : f32
    %v61 = arith.constant 1.6817928552627563 : f32
    %v62 = arith.constant 1.7562521696090698 : f32
    %v63 = arith.constant 1.8340080976486206 : f32
    %v64 = arith.constant 1.9152065515518188 : f32
    %v65 = arith.constant dense<[1.0, 1.0442737340927124, 1.0905077457427979, 1.1387885808944702, 1.1892070770263672, 1.2418577671051025, 1.2968395948410034, 1.3542555570602417, 1.4142135381698608, 1.4768261909484863, 1.5422108173370361, 1.610490322113037, 1.6817928552627563, 1.7562521696090698, 1.8340080976486206, 1.9152065515518188]> : vector<16xf32>
    %v68 = arith.constant -1.428606765330187e-06 : f32
    %v69 = arith.constant -0.693145751953125 : f32
    %v75 = arith.constant -1 : i16
    %v76 = arith.constant 4 : i32
    %v77 = arith.constant 2 : i32
    %v80 = arith.constant 0.1666683554649353 : f32
    %v81 = arith.constant 0.5000162124633789 : f32
    %v88 = arith.constant 0.0 : f32
    %v92 = arith.constant 128 : index
    %v3 = arith.muli %tid, %v1 : index
    %v4 = arith.divui %v3, %nt : index
    %v5 = arith.addi %tid, %v2 : index
    %v6 = arith.muli %v5, %v1 : index
    %v7 = arith.divui %v6, %nt : index
    scf.for %v8 = %v4 to %v7 step %v2 {
      %v10 = vector.broadcast %v9 : f32 to vector<16xf32>
      %v12 = arith.muli %v8, %v11 : index
      %v13 = vector.load %p0[%v12] : memref<96xf32>, vector<16xf32>
      %v14 = arith.cmpf ogt, %v13, %v10 : vector<16xf32>
      %v15 = arith.select %v14, %v13, %v10 : vector<16xi1>, vector<16xf32>
      %v17 = memref.view %scratch[%v16][] : memref<192xi8> to memref<16xf32>
      %v19 = memref.view %scratch[%v18][] : memref<192xi8> to memref<1xf32>
      memref.store %v9, %v19[%v16] : memref<1xf32>
      %v21 = arith.cmpf ogt, %v15, %v20 : vector<16xf32>
      %v22 = arith.select %v21, %v15, %v20 : vector<16xi1>, vector<16xf32>
      %v23 = vector.extract_strided_slice %v22 {offsets = [0], sizes = [8], strides = [1]} : vector<16xf32> to vector<8xf32>
      %v24 = vector.extract_strided_slice %v22 {offsets = [8], sizes = [8], strides = [1]} : vector<16xf32> to vector<8xf32>
      %v25 = arith.cmpf ogt, %v23, %v24 : vector<8xf32>
      %v26 = arith.select %v25, %v23, %v24 : vector<8xi1>, vector<8xf32>
      %v27 = vector.extract_strided_slice %v26 {offsets = [0], sizes = [4], strides = [1]} : vector<8xf32> to vector<4xf32>
      %v28 = vector.extract_strided_slice %v26 {offsets = [4], sizes = [4], strides = [1]} : vector<8xf32> to vector<4xf32>
      %v29 = arith.cmpf ogt, %v27, %v28 : vector<4xf32>
      %v30 = arith.select %v29, %v27, %v28 : vector<4xi1>, vector<4xf32>
      %v31 = vector.extract_strided_slice %v30 {offsets = [0], sizes = [2], strides = [1]} : vector<4xf32> to vector<2xf32>
      %v32 = vector.extract_strided_slice %v30 {offsets = [2], sizes = [2], strides = [1]} : vector<4xf32> to vector<2xf32>
      %v33 = arith.cmpf ogt, %v31, %v32 : vector<2xf32>
      %v34 = arith.select %v33, %v31, %v32 : vector<2xi1>, vector<2xf32>
      %v35 = vector.extract %v34[0] : f32 from vector<2xf32>
      %v36 = vector.extract %v34[1] : f32 from vector<2xf32>
      %v37 = arith.cmpf ogt, %v35, %v36 : f32
      %v38 = arith.select %v37, %v35, %v36 : i1, f32
      %v39 = arith.cmpf ogt, %v38, %v9 : f32
      %v40 = arith.select %v39, %v38, %v9 : i1, f32
      memref.store %v40, %v19[%v16] : memref<1xf32>
      %v41 = vector.broadcast %v40 : f32 to vector<16xf32>
      %v42 = arith.subf %v13, %v41 : vector<16xf32>
      %v45 = vector.broadcast %v43 : f32 to vector<16xf32>
      %v46 = vector.broadcast %v44 : f32 to vector<16xf32>
      %v47 = math.fma %v42, %v45, %v46 : vector<16xf32>
      %v48 = arith.bitcast %v47 : vector<16xf32> to vector<16xi32>
      %v66 = llvm.call_intrinsic "llvm.x86.avx512.permvar.sf.512"(%v65, %v48) : (vector<16xf32>, vector<16xi32>) -> vector<16xf32>
      %v67 = arith.subf %v47, %v46 : vector<16xf32>
      %v70 = vector.broadcast %v69 : f32 to vector<16xf32>
      %v71 = math.fma %v67, %v70, %v42 : vector<16xf32>
      %v72 = vector.broadcast %v68 : f32 to vector<16xf32>
      %v73 = math.fma %v67, %v72, %v71 : vector<16xf32>
      %v74 = vector.broadcast %v49 : f32 to vector<16xf32>
      %v78 = llvm.call_intrinsic "llvm.x86.avx512.mask.range.ps.512"(%v73, %v74, %v77, %v73, %v75, %v76) : (vector<16xf32>, vector<16xf32>, i32, vector<16xf32>, i16, i32) -> vector<16xf32>
      %v79 = arith.mulf %v66, %v78 : vector<16xf32>
      %v82 = vector.broadcast %v80 : f32 to vector<16xf32>
      %v83 = vector.broadcast %v81 : f32 to vector<16xf32>
      %v84 = math.fma %v78, %v82, %v83 : vector<16xf32>
      %v85 = math.fma %v78, %v84, %v74 : vector<16xf32>
      %v86 = math.fma %v79, %v85, %v66 : vector<16xf32>
      %v87 = llvm.call_intrinsic "llvm.x86.avx512.mask.scalef.ps.512"(%v86, %v67, %v86, %v75, %v76) : (vector<16xf32>, vector<16xf32>, vector<16xf32>, i16, i32) -> vector<16xf32>
      vector.store %v87, %v17[%v16] : memref<16xf32>, vector<16xf32>
      %v89 = vector.broadcast %v88 : f32 to vector<16xf32>
      %v90 = arith.addf %v89, %v87 : vector<16xf32>
      %v91 = memref.view %scratch[%v18][] : memref<192xi8> to memref<1xf32>
      %v93 = memref.view %scratch[%v92][] : memref<192xi8> to memref<1xf32>
      memref.store %v88, %v93[%v16] : memref<1xf32>
      %v94 = vector.extract_strided_slice %v90 {offsets = [0], sizes = [8], strides = [1]} : vector<16xf32> to vector<8xf32>
      %v95 = vector.extract_strided_slice %v90 {offsets = [8], sizes = [8], strides = [1]} : vector<16xf32> to vector<8xf32>
      %v96 = arith.addf %v95, %v94 : vector<8xf32>
      %v97 = vector.extract_strided_slice %v96 {offsets = [0], sizes = [4], strides = [1]} : vector<8xf32> to vector<4xf32>
      %v98 = vector.extract_strided_slice %v96 {offsets = [4], sizes = [4], strides = [1]} : vector<8xf32> to vector<4xf32>
      %v99 = arith.addf %v98, %v97 : vector<4xf32>
      %v100 = vector.extract_strided_slice %v99 {offsets = [0], sizes = [2], strides = [1]} : vector<4xf32> to vector<2xf32>
      %v101 = vector.extract_strided_slice %v99 {offsets = [2], sizes = [2], strides = [1]} : vector<4xf32> to vector<2xf32>
      %v102 = arith.addf %v101, %v100 : vector<2xf32>
      %v103 = vector.extract %v102[0] : f32 from vector<2xf32>
      %v104 = vector.extract %v102[1] : f32 from vector<2xf32>
      %v105 = arith.addf %v104, %v103 : f32
      %v106 = arith.addf %v88, %v105 : f32
      memref.store %v106, %v93[%v16] : memref<1xf32>
      %v107 = arith.divf %v49, %v106 : f32
      memref.store %v107, %v91[%v16] : memref<1xf32>
      %v108 = vector.broadcast %v107 : f32 to vector<16xf32>
      %v109 = arith.mulf %v87, %v108 : vector<16xf32>
      vector.store %v109, %p1[%v12] : memref<96xf32>, vector<16xf32>
    }
    return
  }
}
