// Package faultfs is a file system for tests that loses data that was not synced, and fails or
// stops on request. It is mounted with FUSE, so that the code under test makes its real system
// calls.
//
// A Volume is one disk on it. It distinguishes durable data from data in memory, as POSIX does:
//
//   - data, size and times of a file become durable when the file is synced, without its name;
//   - names (create, rename, unlink, mkdir) become durable when their folder is synced, without
//     the file;
//   - a rename happens as a whole or not at all.
//
// A power cut (Survive) keeps a part of the changes that are not durable, which depends on the
// seed: none, all, the first n, or any of them, down to single pages. A size may survive without
// its data, which then reads as zeros. A sync that fails loses changes in the same way, for good.
package faultfs
