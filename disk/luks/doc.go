// Package luks reads headers of LUKS2 disks, and encrypts and decrypts their payload in this process:
// without device mapper, loop devices or root. It does not create headers or derive keys from
// passphrases: it leaves that to the program cryptsetup.
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
// A header is not trusted: a guest may have written it. Read uses the same copy of the header as
// cryptsetup: the one with a valid checksum and the higher sequence number. It rejects headers with
// features that this package does not implement, and headers that would make cryptsetup use excessive
// memory or time. To protect cryptsetup, Read must interpret a header exactly as cryptsetup does: it
// therefore rejects JSON with duplicate names, or with names that differ only in case.
//
// # Payload (payload.go)
//
// The payload is encrypted with AES-XTS, each sector separately. The tweak of a sector is its number
// plus iv_tweak of the segment. The number counts units of 512 bytes from the start of the payload,
// for every sector size. This is dm-crypt's plain64 without iv_large_sectors, which LUKS2 never sets.
// With sectors of 4096 bytes the numbers are 0, 8, 16, …
//
// On a CPU without AES instructions, the run time of crypto/aes depends on the key.
package luks
