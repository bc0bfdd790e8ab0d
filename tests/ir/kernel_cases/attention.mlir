// Attention of two heads: the operator brings its own loop nest. Eight queries are lanes where they fill a vector.
func.func @main(%q: tensor<1x2x8x8xf32>, %k: tensor<1x2x16x8xf32>, %v: tensor<1x2x16x8xf32>) -> tensor<1x2x8x8xf32> {
  %0 = "tw.attention"(%q, %k, %v) {scale = 0.5, operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (tensor<1x2x8x8xf32>, tensor<1x2x16x8xf32>, tensor<1x2x16x8xf32>) -> tensor<1x2x8x8xf32>
  return %0 : tensor<1x2x8x8xf32>
}

// LEVEL 3: zen4 avx2 neon
func.func private @attention_f9118ab448(%arg0: tensor<1x2x8x8xf32>, %arg1: tensor<1x2x16x8xf32>, %arg2: tensor<1x2x16x8xf32>) -> tensor<1x2x8x8xf32> {
  %0 = "tw.attention"(%arg0, %arg1, %arg2) {operandSegmentSizes = array<i32: 1, 1, 1, 0>, scale = 5.000000e-01 : f64} : (tensor<1x2x8x8xf32>, tensor<1x2x16x8xf32>, tensor<1x2x16x8xf32>) -> tensor<1x2x8x8xf32>
  return %0 : tensor<1x2x8x8xf32>
}

// LEVEL 4: zen4
# rule: opaque
# loops:
# blocks:
# buffers: p0, p1, p2, p3
s.tactic('opaque')

def attention_f9118ab448(p0: f32[1, 2, 8, 8], p1: f32[1, 2, 16, 8], p2: f32[1, 2, 16, 8], p3: out(f32[1, 2, 8, 8])):
    for task in thread(16):
        weights = local(f32[16])
        best = local(f32[()])
        sum = local(f32[()])
        for j in serial(16):
            dot = register(f32[8])
            one = register(f32[()])
            for d_l in vector(8, lanes=8):
                qk.init: dot[d_l] = f32(0.0)
            for d_l in vector(8, lanes=8):
                qk: dot[d_l] = addf(dot[d_l], mulf(p0[0, task // 8, task % 8, d_l], p1[0, task // 8, j, d_l]))
            sum.init: one[()] = f32(0.0)
            for d_l in vector(8, lanes=8):
                sum: one[()] = addf(one[()], dot[d_l])
            score: weights[j] = mulf(one[()], f32(0.5))
        max.init: best[()] = f32(-inf)
        for j in serial(16):
            max: best[()] = maxnumf(best[()], weights[j])
        max.finite: best[()] = select(cmpf.oeq(best[()], f32(-inf)), f32(0.0), best[()])
        total.init: sum[()] = f32(0.0)
        for j_l in vector(16, lanes=16):
            exp: weights[j_l] = exp(subf(weights[j_l], best[()]))
        for j in serial(16):
            sum: sum[()] = addf(sum[()], weights[j])
        total.safe: sum[()] = select(cmpf.oeq(sum[()], f32(0.0)), f32(1.0), sum[()])
        sums = register(f32[8])
        for e_l in vector(8, lanes=8):
            pv.init: sums[e_l] = f32(0.0)
        for j in serial(16):
            for e_l in vector(8, lanes=8):
                pv: sums[e_l] = addf(sums[e_l], mulf(weights[j], p2[0, task // 8, j, e_l]))
        for e_l in vector(8, lanes=8):
            out: p3[0, task // 8, task % 8, e_l] = divf(sums[e_l], sum[()])

// LEVEL 4: avx2
# rule: opaque
# loops:
# blocks:
# buffers: p0, p1, p2, p3
s.tactic('opaque', query_vectors=1, score_rows=8, value_tile=(8, 1, 1))

def attention_f9118ab448(p0: f32[1, 2, 8, 8], p1: f32[1, 2, 16, 8], p2: f32[1, 2, 16, 8], p3: out(f32[1, 2, 8, 8])):
    for task in thread(2):
        qt = local(f32[8, 8])
        sc = local(f32[16, 8])
        inv = local(f32[8])
        top = local(f32[8])
        for d_r in unroll(8):
            for i_l in vector(8, lanes=8):
                pack: qt[d_r, i_l] = mulf(p0[0, task, i_l, d_r], f32(0.5))
        for i_l in vector(8, lanes=8):
            max.init: top[i_l] = f32(-inf)
        for jt in serial(2):
            acc = register(f32[8, 8])
            for jr in unroll(8):
                for i_l in vector(8, lanes=8):
                    qk.init: acc[jr, i_l] = f32(0.0)
            for d1 in serial(8):
                for jr in unroll(8):
                    for i_l in vector(8, lanes=8):
                        qk: acc[jr, i_l] = addf(acc[jr, i_l], mulf(p1[0, task, jt * 8 + jr, d1], qt[d1, i_l]))
            largest = register(f32[8])
            for i_l in vector(8, lanes=8):
                max.load: largest[i_l] = top[i_l]
            for jr in unroll(8):
                for i_l in vector(8, lanes=8):
                    score: (sc[jt * 8 + jr, i_l], largest[i_l]) = acc[jr, i_l], select(cmpf.ogt(acc[jr, i_l], largest[i_l]), acc[jr, i_l], largest[i_l])
            for i_l in vector(8, lanes=8):
                max.store: top[i_l] = largest[i_l]
        with register(f32[8]) as shift:
            total = register(f32[8])
            for i_l in vector(8, lanes=8):
                max.finite: shift[i_l] = select(cmpf.oeq(top[i_l], f32(-inf)), f32(0.0), top[i_l])
            for i_l in vector(8, lanes=8):
                sum.init: total[i_l] = f32(0.0)
            for j in serial(16):
                for i_l in vector(8, lanes=8):
                    exp: (sc[j, i_l], total[i_l]) = exp(subf(sc[j, i_l], shift[i_l])), addf(total[i_l], exp(subf(sc[j, i_l], shift[i_l])))
            for i_l in vector(8, lanes=8):
                inverse: inv[i_l] = divf(f32(1.0), select(cmpf.oeq(total[i_l], f32(0.0)), f32(1.0), total[i_l]))
        oacc = register(f32[8, 8])
        for ir in unroll(8):
            for e_l in vector(8, lanes=8):
                pv.init: oacc[ir, e_l] = f32(0.0)
        for j in serial(16):
            for ir in unroll(8):
                for e_l in vector(8, lanes=8):
                    pv: oacc[ir, e_l] = addf(oacc[ir, e_l], mulf(sc[j, ir], p2[0, task, j, e_l]))
        for ir in unroll(8):
            for e_l in vector(8, lanes=8):
                out: p3[0, task, ir, e_l] = mulf(oacc[ir, e_l], inv[ir])

// LEVEL 4: neon
# rule: opaque
# loops:
# blocks:
# buffers: p0, p1, p2, p3
s.tactic('opaque', query_vectors=2, score_rows=8, value_tile=(8, 1, 2))

def attention_f9118ab448(p0: f32[1, 2, 8, 8], p1: f32[1, 2, 16, 8], p2: f32[1, 2, 16, 8], p3: out(f32[1, 2, 8, 8])):
    for task in thread(2):
        qt = local(f32[8, 8])
        sc = local(f32[16, 8])
        inv = local(f32[8])
        top = local(f32[8])
        for i_v in serial(2):
            for d_o in serial(2):
                for d_r in unroll(4):
                    for i_l in vector(4, lanes=4):
                        pack: qt[d_o * 4 + d_r, i_v * 4 + i_l] = mulf(p0[0, task, i_v * 4 + i_l, d_o * 4 + d_r], f32(0.5))
        for i_v in unroll(2):
            for i_l in vector(4, lanes=4):
                max.init: top[i_v * 4 + i_l] = f32(-inf)
        for jt in serial(2):
            acc = register(f32[8, 8])
            for jr in unroll(8):
                for i_v in unroll(2):
                    for i_l in vector(4, lanes=4):
                        qk.init: acc[jr, i_v * 4 + i_l] = f32(0.0)
            for d1 in serial(8):
                for jr in unroll(8):
                    for i_v in unroll(2):
                        for i_l in vector(4, lanes=4):
                            qk: acc[jr, i_v * 4 + i_l] = addf(acc[jr, i_v * 4 + i_l], mulf(p1[0, task, jt * 8 + jr, d1], qt[d1, i_v * 4 + i_l]))
            largest = register(f32[8])
            for i_v in unroll(2):
                for i_l in vector(4, lanes=4):
                    max.load: largest[i_v * 4 + i_l] = top[i_v * 4 + i_l]
            for jr in unroll(8):
                for i_v in unroll(2):
                    for i_l in vector(4, lanes=4):
                        score: (sc[jt * 8 + jr, i_v * 4 + i_l], largest[i_v * 4 + i_l]) = acc[jr, i_v * 4 + i_l], select(cmpf.ogt(acc[jr, i_v * 4 + i_l], largest[i_v * 4 + i_l]), acc[jr, i_v * 4 + i_l], largest[i_v * 4 + i_l])
            for i_v in unroll(2):
                for i_l in vector(4, lanes=4):
                    max.store: top[i_v * 4 + i_l] = largest[i_v * 4 + i_l]
        with register(f32[8]) as shift:
            total = register(f32[8])
            for i_v in unroll(2):
                for i_l in vector(4, lanes=4):
                    max.finite: shift[i_v * 4 + i_l] = select(cmpf.oeq(top[i_v * 4 + i_l], f32(-inf)), f32(0.0), top[i_v * 4 + i_l])
            for i_v in unroll(2):
                for i_l in vector(4, lanes=4):
                    sum.init: total[i_v * 4 + i_l] = f32(0.0)
            for j in serial(16):
                for i_v in unroll(2):
                    for i_l in vector(4, lanes=4):
                        x0 = exp(subf(sc[j, i_v * 4 + i_l], shift[i_v * 4 + i_l]))
                        exp: (sc[j, i_v * 4 + i_l], total[i_v * 4 + i_l]) = x0, addf(total[i_v * 4 + i_l], x0)
            for i_v in unroll(2):
                for i_l in vector(4, lanes=4):
                    inverse: inv[i_v * 4 + i_l] = divf(f32(1.0), select(cmpf.oeq(total[i_v * 4 + i_l], f32(0.0)), f32(1.0), total[i_v * 4 + i_l]))
        oacc = register(f32[8, 8])
        for ir in unroll(8):
            for e_v in unroll(2):
                for e_l in vector(4, lanes=4):
                    pv.init: oacc[ir, e_v * 4 + e_l] = f32(0.0)
        for j in serial(16):
            for ir in unroll(8):
                for e_v in unroll(2):
                    for e_l in vector(4, lanes=4):
                        pv: oacc[ir, e_v * 4 + e_l] = addf(oacc[ir, e_v * 4 + e_l], mulf(sc[j, ir], p2[0, task, j, e_v * 4 + e_l]))
        for ir in unroll(8):
            for e_v in unroll(2):
                for e_l in vector(4, lanes=4):
                    out: p3[0, task, ir, e_v * 4 + e_l] = mulf(oacc[ir, e_v * 4 + e_l], inv[ir])
