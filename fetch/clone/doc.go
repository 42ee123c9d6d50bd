// Package clone creates an image from another image that is ready on this node: with the
// same bytes, encrypted, or decrypted.
//
//	ignore    the same bytes; extents are shared if the file system supports it
//	encrypt   a LUKS2 header of 16 MiB, and the encrypted disk after it
//	decrypt   the disk after a LUKS2 header
//
// # Encrypting
//
//	volume key    random, created by this process
//	header        cryptsetup luksFormat on a file in memory, with the key from a pipe
//	              and the passphrase on standard input
//	payload       the disk that a guest sees (raw or qcow2), encrypted by package luks,
//	              including its zeros: the file reveals only its size
//
// # Decrypting
//
//	header        read by package luks, within its limits, from a copy in memory
//	volume key    cryptsetup luksDump on that copy, with the passphrase
//	payload       decrypted by package luks; zeros become holes
//
// # Promises
//
//  1. Cloning needs no loop device, no device mapper and no root. kill -9 leaves only a
//     partial file: the files of cryptsetup are anonymous, and the program ends with its
//     parent.
//  2. The passphrase and the key are in no argument, environment, file or message.
//  3. Decryption restores the bytes that were encrypted. Each encryption has a new key, so
//     its checksum cannot be known in advance. An interrupted encryption continues with
//     the key in the header of the partial file, if the passphrase opens it.
//  4. A key is used only if the digest in the header confirms it. A passphrase is tried
//     only after package luks has accepted the header.
//  5. The bytes of a disk, and no declaration, decide whether it is encrypted.
//
// # Reading order
//
// clone.go (Fill and the transformations), header.go (LUKS headers), cryptsetup.go (the
// program), secret.go (passphrase and parameters).
package clone
