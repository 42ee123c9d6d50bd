// Package commit verifies the signature of a git commit with keys from a folder.
//
//	keys, err := commit.ReadKeys(dir)
//	result, err := keys.Verify(object, now)
//
// The folder contains the file allowed_signers, in the format of ssh-keygen(1), for SSH keys, and files *.asc and *.gpg
// with OpenPGP keys. One of the two suffices.
//
// # Promises
//
//  1. The package runs no program and reads no repository: the caller passes the bytes of the commit object, as
//     "git cat-file commit" prints them. Only ReadKeys reads files.
//  2. What is signed is the whole object without its signature: the tree, the parents, and the message. Author and committer
//     prove nothing, so the Result has the principal or the fingerprint of the key.
//  3. A folder with a file that cannot be read verifies nothing. Commits signed by X.509, and commits with two signatures,
//     are rejected.
//  4. The validity of an SSH key is judged at the time of the committer, as git does. The caller compares that time with
//     the times of earlier commits: otherwise an expired key could sign with an old date. RSA keys need 2048 bits, and
//     signatures with SHA-1 are rejected, unlike with ssh-keygen.
//  5. If Identify returns the same for two commits, they differ at most in the bytes of their signatures.
//
// # Reading order
//
// keys.go, object.go, ssh.go, allowedsigners.go.
package commit
