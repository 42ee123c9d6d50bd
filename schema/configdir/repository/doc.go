// Package repository reads objects of a git repository, to compare a config directory with a commit.
//
//	r := repository.Open(gitDir)
//	object, err := r.Commit(ctx, revision)               its bytes, for the verification of a signature
//	err = r.Compare(ctx, revision, folder, snapshot)     nil: the files are exactly those of the commit
//	ok, err := r.IsDescendant(ctx, revision, accepted)   the revision came after the accepted commit
//
// # Promises
//
//  1. The only program that runs is "git cat-file --batch". It reads no configuration of a user or the system, and the
//     configuration of the repository, which may be hostile, makes it run nothing and connect to nobody.
//  2. Each object is compared with its name, so a damaged or forged object is an error. Therefore the signature of a commit
//     covers all of its files and its whole history. For repositories with SHA-1, this is only as strong as SHA-1, but
//     known methods for collisions are detected.
//  3. The files are compared as the snapshot has them, and not as the checkout has them at another moment.
//  4. Memory and time are bounded.
package repository
