// Package clone creates an image from another image that is ready on this node: with the same bytes,
// encrypted, or decrypted.
//
//	ignore    copy the bytes; extents are shared if the file system supports it
//	encrypt   write a LUKS2 header of 16 MiB, and then the encrypted disk
//	decrypt   decrypt the disk after the LUKS2 header
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
//  1. Cloning needs no loop device, no device mapper and no root. After kill -9 only a partial
//     file remains: the files of cryptsetup are anonymous, and the program ends with its
//     parent.
//  2. The passphrase and the key never occur in an argument, an environment variable, a file on
//     disk or a message.
//  3. Decryption restores the bytes that were encrypted. Each encryption uses a new key, so
//     its checksum cannot be known in advance. An interrupted encryption resumes with the
//     key in the header of the partial file, if the passphrase opens this header.
//  4. A key is used only if the digest in the header confirms it. A passphrase is tried only
//     after package luks has accepted the header.
//  5. Only the bytes of a disk determine whether it is encrypted, not a declaration.
//
// # Reading order
//
// clone.go (Fill and the transformations), header.go (LUKS headers), cryptsetup.go (the
// program), secret.go (passphrase and parameters).
package clone
