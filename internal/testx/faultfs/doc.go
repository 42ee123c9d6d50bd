// Package faultfs is a file system for tests that forgets what was not synced,
// fails on request and stops dead on request. It is mounted with FUSE, so that
// the code under test does its real system calls.
//
// A Volume is one disk on it. It holds what is durable and what is only in
// memory, as POSIX tells the two apart:
//
//   - written data, sizes and times of a file become durable when the file is
//     synced, and not with its name;
//   - names (create, rename, unlink, mkdir) become durable when the folder that
//     they are in is synced, and not with the file;
//   - a rename happens as a whole or not at all.
//
// Of what is not durable, a power cut (Survive) leaves whatever the seed says:
// nothing, all, the first so many changes, or any of them, down to single pages;
// a size may be there without its data, which then reads as zeros. A sync that
// is made to fail loses changes in the same way, for good.
//
// It is part of no program.
package faultfs
