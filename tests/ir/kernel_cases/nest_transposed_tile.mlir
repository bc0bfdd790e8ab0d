// A tile of 16 x 16 that is read across: sixteen loads and four rounds of shuffles, no gather.
// MACHINES zen4
def k(x: f32[16, 16], y: out(f32[16, 16])):
    for a in unroll(16):
        for b in vector(16, lanes=16):
            s0: y[a, b] = addf(x[b, a], x[b, a])

// LEVEL 5: zen4
module {
  func.func @k(%p0: memref<256xf32>, %p1: memref<256xf32> {llvm.noalias}, %scratch: memref<1xi8> {llvm.noalias}, %tid: index, %nt: index) {
    %v1 = arith.constant 0 : index
    %v4 = arith.constant 16 : index
    %v6 = arith.constant 32 : index
    %v8 = arith.constant 48 : index
    %v10 = arith.constant 64 : index
    %v12 = arith.constant 80 : index
    %v14 = arith.constant 96 : index
    %v16 = arith.constant 112 : index
    %v18 = arith.constant 128 : index
    %v20 = arith.constant 144 : index
    %v22 = arith.constant 160 : index
    %v24 = arith.constant 176 : index
    %v26 = arith.constant 192 : index
    %v28 = arith.constant 208 : index
    %v30 = arith.constant 224 : index
    %v32 = arith.constant 240 : index
    %v2 = arith.cmpi eq, %tid, %v1 : index
    scf.if %v2 {
      %v3 = vector.load %p0[%v1] : memref<256xf32>, vector<16xf32>
      %v5 = vector.load %p0[%v4] : memref<256xf32>, vector<16xf32>
      %v7 = vector.load %p0[%v6] : memref<256xf32>, vector<16xf32>
      %v9 = vector.load %p0[%v8] : memref<256xf32>, vector<16xf32>
      %v11 = vector.load %p0[%v10] : memref<256xf32>, vector<16xf32>
      %v13 = vector.load %p0[%v12] : memref<256xf32>, vector<16xf32>
      %v15 = vector.load %p0[%v14] : memref<256xf32>, vector<16xf32>
      %v17 = vector.load %p0[%v16] : memref<256xf32>, vector<16xf32>
      %v19 = vector.load %p0[%v18] : memref<256xf32>, vector<16xf32>
      %v21 = vector.load %p0[%v20] : memref<256xf32>, vector<16xf32>
      %v23 = vector.load %p0[%v22] : memref<256xf32>, vector<16xf32>
      %v25 = vector.load %p0[%v24] : memref<256xf32>, vector<16xf32>
      %v27 = vector.load %p0[%v26] : memref<256xf32>, vector<16xf32>
      %v29 = vector.load %p0[%v28] : memref<256xf32>, vector<16xf32>
      %v31 = vector.load %p0[%v30] : memref<256xf32>, vector<16xf32>
      %v33 = vector.load %p0[%v32] : memref<256xf32>, vector<16xf32>
      %v34 = vector.shuffle %v3, %v5 [0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30] : vector<16xf32>, vector<16xf32>
      %v35 = vector.shuffle %v3, %v5 [1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31] : vector<16xf32>, vector<16xf32>
      %v36 = vector.shuffle %v7, %v9 [0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30] : vector<16xf32>, vector<16xf32>
      %v37 = vector.shuffle %v7, %v9 [1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31] : vector<16xf32>, vector<16xf32>
      %v38 = vector.shuffle %v11, %v13 [0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30] : vector<16xf32>, vector<16xf32>
      %v39 = vector.shuffle %v11, %v13 [1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31] : vector<16xf32>, vector<16xf32>
      %v40 = vector.shuffle %v15, %v17 [0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30] : vector<16xf32>, vector<16xf32>
      %v41 = vector.shuffle %v15, %v17 [1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31] : vector<16xf32>, vector<16xf32>
      %v42 = vector.shuffle %v19, %v21 [0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30] : vector<16xf32>, vector<16xf32>
      %v43 = vector.shuffle %v19, %v21 [1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31] : vector<16xf32>, vector<16xf32>
      %v44 = vector.shuffle %v23, %v25 [0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30] : vector<16xf32>, vector<16xf32>
      %v45 = vector.shuffle %v23, %v25 [1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31] : vector<16xf32>, vector<16xf32>
      %v46 = vector.shuffle %v27, %v29 [0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30] : vector<16xf32>, vector<16xf32>
      %v47 = vector.shuffle %v27, %v29 [1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31] : vector<16xf32>, vector<16xf32>
      %v48 = vector.shuffle %v31, %v33 [0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30] : vector<16xf32>, vector<16xf32>
      %v49 = vector.shuffle %v31, %v33 [1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31] : vector<16xf32>, vector<16xf32>
      %v50 = vector.shuffle %v34, %v36 [0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29] : vector<16xf32>, vector<16xf32>
      %v51 = vector.shuffle %v34, %v36 [2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31] : vector<16xf32>, vector<16xf32>
      %v52 = vector.shuffle %v35, %v37 [0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29] : vector<16xf32>, vector<16xf32>
      %v53 = vector.shuffle %v35, %v37 [2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31] : vector<16xf32>, vector<16xf32>
      %v54 = vector.shuffle %v38, %v40 [0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29] : vector<16xf32>, vector<16xf32>
      %v55 = vector.shuffle %v38, %v40 [2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31] : vector<16xf32>, vector<16xf32>
      %v56 = vector.shuffle %v39, %v41 [0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29] : vector<16xf32>, vector<16xf32>
      %v57 = vector.shuffle %v39, %v41 [2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31] : vector<16xf32>, vector<16xf32>
      %v58 = vector.shuffle %v42, %v44 [0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29] : vector<16xf32>, vector<16xf32>
      %v59 = vector.shuffle %v42, %v44 [2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31] : vector<16xf32>, vector<16xf32>
      %v60 = vector.shuffle %v43, %v45 [0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29] : vector<16xf32>, vector<16xf32>
      %v61 = vector.shuffle %v43, %v45 [2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31] : vector<16xf32>, vector<16xf32>
      %v62 = vector.shuffle %v46, %v48 [0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29] : vector<16xf32>, vector<16xf32>
      %v63 = vector.shuffle %v46, %v48 [2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31] : vector<16xf32>, vector<16xf32>
      %v64 = vector.shuffle %v47, %v49 [0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29] : vector<16xf32>, vector<16xf32>
      %v65 = vector.shuffle %v47, %v49 [2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31] : vector<16xf32>, vector<16xf32>
      %v66 = vector.shuffle %v50, %v54 [0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27] : vector<16xf32>, vector<16xf32>
      %v67 = vector.shuffle %v50, %v54 [4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31] : vector<16xf32>, vector<16xf32>
      %v68 = vector.shuffle %v52, %v56 [0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27] : vector<16xf32>, vector<16xf32>
      %v69 = vector.shuffle %v52, %v56 [4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31] : vector<16xf32>, vector<16xf32>
      %v70 = vector.shuffle %v51, %v55 [0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27] : vector<16xf32>, vector<16xf32>
      %v71 = vector.shuffle %v51, %v55 [4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31] : vector<16xf32>, vector<16xf32>
      %v72 = vector.shuffle %v53, %v57 [0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27] : vector<16xf32>, vector<16xf32>
      %v73 = vector.shuffle %v53, %v57 [4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31] : vector<16xf32>, vector<16xf32>
      %v74 = vector.shuffle %v58, %v62 [0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27] : vector<16xf32>, vector<16xf32>
      %v75 = vector.shuffle %v58, %v62 [4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31] : vector<16xf32>, vector<16xf32>
      %v76 = vector.shuffle %v60, %v64 [0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27] : vector<16xf32>, vector<16xf32>
      %v77 = vector.shuffle %v60, %v64 [4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31] : vector<16xf32>, vector<16xf32>
      %v78 = vector.shuffle %v59, %v63 [0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27] : vector<16xf32>, vector<16xf32>
      %v79 = vector.shuffle %v59, %v63 [4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31] : vector<16xf32>, vector<16xf32>
      %v80 = vector.shuffle %v61, %v65 [0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27] : vector<16xf32>, vector<16xf32>
      %v81 = vector.shuffle %v61, %v65 [4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31] : vector<16xf32>, vector<16xf32>
      %v82 = vector.shuffle %v66, %v74 [0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23] : vector<16xf32>, vector<16xf32>
      %v83 = vector.shuffle %v66, %v74 [8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31] : vector<16xf32>, vector<16xf32>
      %v84 = vector.shuffle %v68, %v76 [0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23] : vector<16xf32>, vector<16xf32>
      %v85 = vector.shuffle %v68, %v76 [8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31] : vector<16xf32>, vector<16xf32>
      %v86 = vector.shuffle %v70, %v78 [0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23] : vector<16xf32>, vector<16xf32>
      %v87 = vector.shuffle %v70, %v78 [8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31] : vector<16xf32>, vector<16xf32>
      %v88 = vector.shuffle %v72, %v80 [0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23] : vector<16xf32>, vector<16xf32>
      %v89 = vector.shuffle %v72, %v80 [8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31] : vector<16xf32>, vector<16xf32>
      %v90 = vector.shuffle %v67, %v75 [0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23] : vector<16xf32>, vector<16xf32>
      %v91 = vector.shuffle %v67, %v75 [8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31] : vector<16xf32>, vector<16xf32>
      %v92 = vector.shuffle %v69, %v77 [0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23] : vector<16xf32>, vector<16xf32>
      %v93 = vector.shuffle %v69, %v77 [8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31] : vector<16xf32>, vector<16xf32>
      %v94 = vector.shuffle %v71, %v79 [0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23] : vector<16xf32>, vector<16xf32>
      %v95 = vector.shuffle %v71, %v79 [8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31] : vector<16xf32>, vector<16xf32>
      %v96 = vector.shuffle %v73, %v81 [0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23] : vector<16xf32>, vector<16xf32>
      %v97 = vector.shuffle %v73, %v81 [8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31] : vector<16xf32>, vector<16xf32>
      %v98 = arith.addf %v82, %v82 : vector<16xf32>
      vector.store %v98, %p1[%v1] : memref<256xf32>, vector<16xf32>
      %v99 = arith.addf %v84, %v84 : vector<16xf32>
      vector.store %v99, %p1[%v4] : memref<256xf32>, vector<16xf32>
      %v100 = arith.addf %v86, %v86 : vector<16xf32>
      vector.store %v100, %p1[%v6] : memref<256xf32>, vector<16xf32>
      %v101 = arith.addf %v88, %v88 : vector<16xf32>
      vector.store %v101, %p1[%v8] : memref<256xf32>, vector<16xf32>
      %v102 = arith.addf %v90, %v90 : vector<16xf32>
      vector.store %v102, %p1[%v10] : memref<256xf32>, vector<16xf32>
      %v103 = arith.addf %v92, %v92 : vector<16xf32>
      vector.store %v103, %p1[%v12] : memref<256xf32>, vector<16xf32>
      %v104 = arith.addf %v94, %v94 : vector<16xf32>
      vector.store %v104, %p1[%v14] : memref<256xf32>, vector<16xf32>
      %v105 = arith.addf %v96, %v96 : vector<16xf32>
      vector.store %v105, %p1[%v16] : memref<256xf32>, vector<16xf32>
      %v106 = arith.addf %v83, %v83 : vector<16xf32>
      vector.store %v106, %p1[%v18] : memref<256xf32>, vector<16xf32>
      %v107 = arith.addf %v85, %v85 : vector<16xf32>
      vector.store %v107, %p1[%v20] : memref<256xf32>, vector<16xf32>
      %v108 = arith.addf %v87, %v87 : vector<16xf32>
      vector.store %v108, %p1[%v22] : memref<256xf32>, vector<16xf32>
      %v109 = arith.addf %v89, %v89 : vector<16xf32>
      vector.store %v109, %p1[%v24] : memref<256xf32>, vector<16xf32>
      %v110 = arith.addf %v91, %v91 : vector<16xf32>
      vector.store %v110, %p1[%v26] : memref<256xf32>, vector<16xf32>
      %v111 = arith.addf %v93, %v93 : vector<16xf32>
      vector.store %v111, %p1[%v28] : memref<256xf32>, vector<16xf32>
      %v112 = arith.addf %v95, %v95 : vector<16xf32>
      vector.store %v112, %p1[%v30] : memref<256xf32>, vector<16xf32>
      %v113 = arith.addf %v97, %v97 : vector<16xf32>
      vector.store %v113, %p1[%v32] : memref<256xf32>, vector<16xf32>
    }
    return
  }
}
