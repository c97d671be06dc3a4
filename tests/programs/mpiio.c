// SPDX-License-Identifier: Apache-2.0
// Writes a file together: collective strided writes, independent writes, a trailer; reads it back and checks.
// It writes every byte once and never truncates, so a rank that starts again writes the same bytes to the same places.
//   mpiio FILE [RECORDS_PER_RANK=200] [RECORD_BYTES=1000]
#include "check.h"

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    CHECK(argc > 1, "usage: mpiio FILE [RECORDS_PER_RANK] [RECORD_BYTES]");
    long records = argument(argc, argv, 2, 200), bytes = argument(argc, argv, 3, 1000);
    long part = records / 2; // the first half in one collective write, the rest one by one
    char *data = allocate((size_t)(records * bytes)), *back = allocate((size_t)(records * bytes));
    for (long i = 0; i < records; i++)
        fill(data + i * bytes, (size_t)bytes, (uint64_t)(i * size + rank));
    MPI_File file;
    int error = MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file);
    CHECK(error == MPI_SUCCESS, "cannot open %s", argv[1]);

    // Record i of rank r lies at (i * size + r) * bytes: a view with holes.
    MPI_Datatype record, view;
    MPI_Type_contiguous((int)bytes, MPI_BYTE, &record);
    MPI_Type_create_resized(record, 0, bytes * size, &view);
    MPI_Type_commit(&record), MPI_Type_commit(&view);
    MPI_File_set_view(file, rank * bytes, MPI_BYTE, view, "native", MPI_INFO_NULL);
    MPI_Status status;
    int count;
    MPI_File_write_all(file, data, (int)(part * bytes), MPI_BYTE, &status);
    MPI_Get_count(&status, MPI_BYTE, &count);
    CHECK(count == part * bytes, "%d bytes written together", count);
    MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL);
    for (long i = part; i < records; i++) {
        linger(i, records);
        MPI_Offset at = (MPI_Offset)(i * size + rank) * bytes;
        if (i % 2) {
            MPI_File_write_at(file, at, data + i * bytes, (int)bytes, MPI_BYTE, MPI_STATUS_IGNORE);
        } else {
            MPI_Request request;
            MPI_File_iwrite_at(file, at, data + i * bytes, (int)bytes, MPI_BYTE, &request);
            MPI_Wait(&request, MPI_STATUS_IGNORE);
        }
        if (i % 20 == 0)
            MPI_Barrier(MPI_COMM_WORLD);
    }
    // The trailer: the number of records, by rank 0.
    MPI_Offset end = (MPI_Offset)records * size * bytes;
    int64_t total = records * size;
    if (rank == 0)
        MPI_File_write_at(file, end, &total, 8, MPI_BYTE, MPI_STATUS_IGNORE);
    MPI_File_sync(file);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_File_sync(file);

    // Everybody reads what its right neighbour wrote, together; and a few records on its own.
    int other = (rank + 1) % size;
    MPI_File_set_view(file, other * bytes, MPI_BYTE, view, "native", MPI_INFO_NULL);
    MPI_File_read_all(file, back, (int)(records * bytes), MPI_BYTE, &status);
    MPI_Get_count(&status, MPI_BYTE, &count);
    CHECK(count == records * bytes, "%d bytes read together", count);
    for (long i = 0; i < records; i++)
        CHECK(first_wrong(back + i * bytes, (size_t)bytes, (uint64_t)(i * size + other)) < 0, "record %ld of %d", i, other);
    MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL);
    for (long i = 0; i < records; i += 17) {
        MPI_File_read_at(file, (MPI_Offset)(i * size) * bytes, back, (int)bytes, MPI_BYTE, MPI_STATUS_IGNORE);
        CHECK(first_wrong(back, (size_t)bytes, (uint64_t)(i * size)) < 0, "record %ld of rank 0", i);
    }
    MPI_Offset length;
    MPI_File_get_size(file, &length);
    CHECK(length == end + 8, "the file has %lld bytes", (long long)length);
    MPI_File_close(&file);
    uint64_t hash = hash_bytes(FNV_START, data, (size_t)(records * bytes)), all;
    MPI_Reduce(&hash, &all, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("mpiio records=%ld hash=%016llx\n", records * size, (unsigned long long)all);
    MPI_Type_free(&record), MPI_Type_free(&view);
    free(data), free(back);
    MPI_Finalize();
    return 0;
}
