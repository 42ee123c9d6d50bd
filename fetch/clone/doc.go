// Package clone makes an image from another one that is ready on this node: the same
// bytes, encrypted, or decrypted.
//
//	ignore    the bytes of the file as they are, extents shared where that can be
//	encrypt   a LUKS2 header of 16 MiB and the disk behind it, encrypted
//	decrypt   the disk behind a LUKS2 header
//
// # Encrypting
//
//	volume key    random, made here
//	header        cryptsetup luksFormat on a file in memory, with the key from a pipe
//	              and the passphrase from standard input
//	payload       what a guest sees of the source, be it raw or qcow2, encrypted by
//	              package luks, zeros too: the file tells nothing but its size
//
// # Decrypting
//
//	header        read by package luks, within its limits, from a copy in memory
//	volume key    cryptsetup luksDump on that copy, as encrypted with the passphrase
//	payload       decrypted by package luks; zeros become holes
//
// What follows from it:
//
//  1. No loop device, no device mapper and no root are needed, and kill -9 leaves
//     nothing but a part. What cryptsetup works on goes with the last process that
//     has it open, and cryptsetup itself goes with the process that started it.
//  2. The passphrase and the key are in no argument, environment, file or message.
//  3. What was decrypted has the bytes that were encrypted. What is encrypted anew has
//     another key, so that no checksum of it can be known before. A part is gone on with
//     by the key in its own header, as long as the passphrase opens that.
//  4. A key is used when the digest in the header says that it is the right one.
//     No passphrase is tried before the header has been found harmless.
//  5. Whether a disk is encrypted is what its bytes say.
package clone
