// Package luks reads headers of LUKS2 disks, and encrypts and decrypts their payload in this
// process: without device mapper, loop devices or root. It does not create headers or derive
// keys from passphrases: the program cryptsetup does.
//
// # A disk
//
//	0                 first copy of the header: 4 KiB binary, then JSON
//	size of a copy    second copy
//	…                 key slots: the volume key, encrypted with a passphrase
//	Header.Offset     payload: the disk that a guest sees, encrypted
//
// # Headers (header.go, keyslot.go)
//
// A header may come from anywhere, a guest for instance. Read uses the copy that cryptsetup
// uses: the one with a valid checksum and the higher sequence number. It refuses headers with
// features that this package does not implement, and headers that would make cryptsetup use
// excessive memory or time. This protects cryptsetup, so a header must mean the same here and
// there: JSON with duplicate names, or names that differ only in case, is refused.
//
// # Payload (xts.go, aes_amd64.go)
//
// AES-XTS, each sector separately. The tweak of a sector is its number: in units of 512 bytes
// from the start of the payload for every sector size, plus iv_tweak of the segment. This is
// dm-crypt's plain64 without iv_large_sectors, which LUKS2 never sets. With sectors of 4096
// bytes the numbers are 0, 8, 16, …
//
// On amd64, assembly keeps eight blocks at a time in the AES units of the processor;
// x/crypto/xts encrypts one block after the other and waits for most of them. Other processors
// use crypto/aes. Without AES instructions, its run time depends on the key.
package luks
