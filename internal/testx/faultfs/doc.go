// Package faultfs is a file system for tests that loses unsynced data, and makes operations fail or
// stop on request. It is mounted with FUSE, so that the code under test makes real system calls.
//
// A Volume represents one disk. It distinguishes durable data from data in memory, as POSIX does:
//
//   - data, size and times of a file become durable when the file is synced, but its name does not;
//   - names (create, rename, unlink, mkdir) become durable when their folder is synced, but the
//     files do not;
//   - a rename takes effect completely or not at all.
//
// A simulated power failure (Survive) keeps some of the changes that are not durable. The seed
// determines which: none, all, the first n, or any subset, with single pages as the smallest unit. A
// file may keep its size without its data, which is then read as zeros. A sync that fails loses
// changes in the same way, permanently.
package faultfs
