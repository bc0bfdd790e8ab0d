// A 2x2 maximum with stride 2.
// CODE avx2
func.func @main(%x: tensor<1x16x4x4xf32>) -> tensor<1x16x2x2xf32> {
  %0 = "tw.max_pool"(%x) {kernel = array<i64: 2, 2>, strides = array<i64: 2, 2>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} : (tensor<1x16x4x4xf32>) -> tensor<1x16x2x2xf32>
  return %0 : tensor<1x16x2x2xf32>
}

// LEVEL 3: zen4 avx2 neon
func.func private @max_pool_abbf2aba98(%arg0: tensor<1x16x4x4xf32>) -> tensor<1x16x2x2xf32> {
  %0 = tensor.empty() : tensor<2x2xf32>
  %cst = arith.constant 0xFF800000 : f32
  %1 = tensor.empty() : tensor<1x16x2x2xf32>
  %2 = linalg.fill ins(%cst : f32) outs(%1 : tensor<1x16x2x2xf32>) -> tensor<1x16x2x2xf32>
  %3 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2, d3, d4, d5) -> (d0, d1, d2 * 2 + d4, d3 * 2 + d5)>, affine_map<(d0, d1, d2, d3, d4, d5) -> (d4, d5)>, affine_map<(d0, d1, d2, d3, d4, d5) -> (d0, d1, d2, d3)>], iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction", "reduction"]} ins(%arg0, %0 : tensor<1x16x4x4xf32>, tensor<2x2xf32>) outs(%2 : tensor<1x16x2x2xf32>) attrs =  {tw.op = "max_pool"} {
  ^bb0(%in: f32, %in_0: f32, %out: f32):
    %4 = arith.maximumf %in, %out : f32
    linalg.yield %4 : f32
  } -> tensor<1x16x2x2xf32>
  return %3 : tensor<1x16x2x2xf32>
}

// LEVEL 4: zen4 avx2 neon
# rule: rows
# loops: j0, k0, l0, m0, n0
# blocks: s0
# buffers: p0, p1
j0_k0 = s.fuse('j0', 'k0')
j0_k0_l0 = s.fuse('j0_k0', 'l0')
s.parallel('j0_k0_l0')

def max_pool_abbf2aba98(p0: f32[1, 16, 4, 4], p1: out(f32[1, 16, 2, 2])):
    for j0_k0_l0 in thread(64):
        s0.init: p1[0, j0_k0_l0 // 4, j0_k0_l0 // 2 % 2, j0_k0_l0 % 2] = f32(-inf)
        for m0 in serial(2):
            for n0 in serial(2):
                s0: p1[0, j0_k0_l0 // 4, j0_k0_l0 // 2 % 2, j0_k0_l0 % 2] = maximumf(p0[0, j0_k0_l0 // 4, j0_k0_l0 // 2 % 2 * 2 + m0, j0_k0_l0 % 2 * 2 + n0], p1[0, j0_k0_l0 // 4, j0_k0_l0 // 2 % 2, j0_k0_l0 % 2])

// LEVEL 5: avx2
module {
  func.func @max_pool_abbf2aba98(%p0: memref<256xf32>, %p1: memref<64xf32> {llvm.noalias}, %scratch: memref<1xi8> {llvm.noalias}, %tid: index, %nt: index) attributes {passthrough = ["tw-accumulates-in-memory"]} {
    %v1 = arith.constant 64 : index
    %v2 = arith.constant 1 : index
    %v9 = arith.constant 0xff800000 : f32
    %v10 = arith.constant 0 : index
    %v11 = arith.constant 2 : index
    %v17 = arith.constant 8 : index
    %v20 = arith.constant 4 : index
    %v3 = arith.muli %tid, %v1 : index
    %v4 = arith.divui %v3, %nt : index
    %v5 = arith.addi %tid, %v2 : index
    %v6 = arith.muli %v5, %v1 : index
    %v7 = arith.divui %v6, %nt : index
    scf.for %v8 = %v4 to %v7 step %v2 {
      memref.store %v9, %p1[%v8] : memref<64xf32>
      scf.for %v12 = %v10 to %v11 step %v2 {
        scf.for %v13 = %v10 to %v11 step %v2 {
          %v14 = arith.remui %v8, %v11 : index
          %v15 = arith.muli %v14, %v11 : index
          %v16 = arith.divui %v8, %v11 : index
          %v18 = arith.muli %v16, %v17 : index
          %v19 = arith.addi %v15, %v18 : index
          %v21 = arith.muli %v12, %v20 : index
          %v22 = arith.addi %v19, %v21 : index
          %v23 = arith.addi %v22, %v13 : index
          %v24 = memref.load %p0[%v23] : memref<256xf32>
          %v25 = memref.load %p1[%v8] : memref<64xf32>
          %v26 = arith.maximumf %v24, %v25 fastmath<nsz> : f32
          memref.store %v26, %p1[%v8] : memref<64xf32>
        }
      }
    }
    return
  }
}
