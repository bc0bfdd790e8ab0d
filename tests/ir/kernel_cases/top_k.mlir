// The three largest of each row, by insertion: rows are lanes where they fill a vector.
func.func @main(%x: tensor<4x20xf32>) -> tensor<4x3xf32> {
  %0, %1 = "tw.top_k"(%x) {k = 3, axis = 1, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<4x20xf32>) -> (tensor<4x3xf32>, tensor<4x3xi64>)
  return %0 : tensor<4x3xf32>
}

// LEVEL 3: zen4 avx2 neon
func.func private @top_k_1f776b495f(%arg0: tensor<4x20xf32>) -> tensor<4x3xf32> {
  %0:2 = "tw.top_k"(%arg0) {axis = 1 : i64, k = 3 : i64, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<4x20xf32>) -> (tensor<4x3xf32>, tensor<4x3xi64>)
  return %0#0 : tensor<4x3xf32>
}

// LEVEL 4: zen4 avx2
# rule: opaque
# loops:
# blocks:
# buffers: p0, p1, t1
s.tactic('opaque')

def top_k_1f776b495f(p0: f32[4, 20], p1: out(f32[4, 3])):
    for line in serial(4):
        best = local(f32[3])
        where = local(i64[3])
        for i in serial(3):
            empty: (best[i], where[i]) = f32(0.0), i64(-1)
        for n in serial(20):
            new = register(f32[()])
            take: new[()] = p0[line, n]
            if ori(cmpi.slt(where[2], i64(0)), ori(cmpf.ogt(new[()], best[2]), andi(cmpf.uno(new[()], new[()]), cmpf.ord(best[2], best[2])))):
                for i in serial(3):
                    x0 = where[max(i * -1 + 1, 0)]
                    x1 = best[max(i * -1 + 1, 0)]
                    x2 = andi(i * -1 + 2 >= 1, ori(cmpi.slt(x0, i64(0)), ori(cmpf.ogt(new[()], x1), andi(cmpf.uno(new[()], new[()]), cmpf.ord(x1, x1)))))
                    x3 = ori(cmpi.slt(where[i * -1 + 2], i64(0)), ori(cmpf.ogt(new[()], best[i * -1 + 2]), andi(cmpf.uno(new[()], new[()]), cmpf.ord(best[i * -1 + 2], best[i * -1 + 2]))))
                    insert: (best[i * -1 + 2], where[i * -1 + 2]) = select(x2, x1, select(x3, new[()], best[i * -1 + 2])), select(x2, x0, select(x3, index_cast[i64](n), where[i * -1 + 2]))
        for i in serial(3):
            result: p1[line, i] = best[i]

// LEVEL 4: neon
# rule: opaque
# loops:
# blocks:
# buffers: p0, p1, t1
s.tactic('opaque')

def top_k_1f776b495f(p0: f32[4, 20], p1: out(f32[4, 3])):
    where = register(i32[12])
    best = register(f32[12])
    new = register(f32[4])
    for l in vector(4, lanes=4):
        empty: (best[l], where[l]) = f32(0.0), i32(-1)
    for l in vector(4, lanes=4):
        empty: (best[l + 4], where[l + 4]) = f32(0.0), i32(-1)
    for l in vector(4, lanes=4):
        empty: (best[l + 8], where[l + 8]) = f32(0.0), i32(-1)
    for j in serial(20):
        for l in vector(4, lanes=4):
            take: new[l] = p0[l, j]
        for l in vector(4, lanes=4):
            x0 = ori(cmpi.slt(where[l + 4], i32(0)), ori(cmpf.ogt(new[l], best[l + 4]), andi(cmpf.uno(new[l], new[l]), cmpf.ord(best[l + 4], best[l + 4]))))
            x1 = ori(cmpi.slt(where[l + 8], i32(0)), ori(cmpf.ogt(new[l], best[l + 8]), andi(cmpf.uno(new[l], new[l]), cmpf.ord(best[l + 8], best[l + 8]))))
            insert: (best[l + 8], where[l + 8]) = select(x0, best[l + 4], select(x1, new[l], best[l + 8])), select(x0, where[l + 4], select(x1, index_cast[i32](j), where[l + 8]))
        for l in vector(4, lanes=4):
            x0 = ori(cmpi.slt(where[l], i32(0)), ori(cmpf.ogt(new[l], best[l]), andi(cmpf.uno(new[l], new[l]), cmpf.ord(best[l], best[l]))))
            x1 = ori(cmpi.slt(where[l + 4], i32(0)), ori(cmpf.ogt(new[l], best[l + 4]), andi(cmpf.uno(new[l], new[l]), cmpf.ord(best[l + 4], best[l + 4]))))
            insert: (best[l + 4], where[l + 4]) = select(x0, best[l], select(x1, new[l], best[l + 4])), select(x0, where[l], select(x1, index_cast[i32](j), where[l + 4]))
        for l in vector(4, lanes=4):
            x0 = ori(cmpi.slt(where[l], i32(0)), ori(cmpf.ogt(new[l], best[l]), andi(cmpf.uno(new[l], new[l]), cmpf.ord(best[l], best[l]))))
            insert: (best[l], where[l]) = select(x0, new[l], best[l]), select(x0, index_cast[i32](j), where[l])
    for l in vector(4, lanes=4):
        result: p1[l, 0] = best[l]
    for l in vector(4, lanes=4):
        result: p1[l, 1] = best[l + 4]
    for l in vector(4, lanes=4):
        result: p1[l, 2] = best[l + 8]
