// Package signature verifies signatures of checksum lists and of image files, with keys from a folder.
//
//	keys, err := signature.ReadKeys(dir, signature.OpenPGP)
//
//	a detached signature of a list          keys.VerifyList(list, signature, name, now)
//	a list that contains its signature      keys.VerifyEmbedded(file, now), which returns the signed text
//	a detached signature of an image file   v, err := keys.NewVerifier(signature, name, now)
//	                                        write all bytes of the file to v, then v.Verify()
//
// # Schemes
//
//	openpgp    detached (binary or armoured), or a clearsigned list. RFC 9580
//	minisign   the four lines of a .minisig file
//	signify    the two lines of a .sig file; the list may follow them
//	cosign     a .sig file in base64, or a Sigstore bundle (v0.3), by a key; transparency logs are not queried
//
// # Promises
//
//  1. The package does no network I/O and reads no clock: now is a parameter. Only ReadKeys reads files.
//  2. A Result is returned only for a signature by a key of the folder that is valid for exactly the given bytes. Every
//     other answer is an *Error with a Reason.
//  3. The time that counts for the expiry of an OpenPGP key is the time of the signature: a list stays valid when its key
//     expires later, with a Warning. A revoked key is never accepted, whatever the reason and the time of its revocation.
//  4. Of several OpenPGP signatures, one valid signature is enough. Signatures by keys outside the folder are ignored.
//  5. Of a clearsigned list, only the signed text is returned, never what precedes or follows it.
//  6. Memory and time are bounded: MaxSize for signatures, MaxList for lists, MaxKeyFile for files with keys. A Verifier needs
//     the same memory for an image of any size.
//
// # Reading order
//
// result.go, keys.go, verifier.go, then a file for each scheme: openpgpkeys.go and openpgp.go, minisign.go, signify.go,
// cosign.go. Package commit verifies git commits.
package signature
