// Package sandbox evaluates the .cue files of a user in a child process with limits on
// time and memory.
//
// An evaluation of CUE cannot be interrupted, and a few lines can keep it busy for years.
// NewDirectory groups the files of a directory as CUE does, and Evaluate starts the program
// itself as a child: ChildMain, which main calls first, limits the process, evaluates one
// unit after the other and exits.
//
// Promises:
//
//   - A file that takes too long, needs too much memory or crashes CUE is an error of its
//     unit. The other units are evaluated.
//   - The files read nothing but files of the config directory.
//     They have no network and no registry.
//   - A message contains no address, because an address may contain a password.
//
// Reading order: evaluate.go runs in the parent and child.go in the child process. walk.go
// converts the result to a document.Value.
package sandbox
