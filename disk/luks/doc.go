// Package luks reads the headers of LUKS2 disks and encrypts and decrypts what is
// behind them, in this process: without device mapper, loop devices or root. The
// key is found and headers are made by others (the program cryptsetup).
//
// # A disk
//
//	0                 first copy of the header: 4 KiB binary, then JSON
//	size of a copy    second copy
//	…                 key slots: the volume key, encrypted with a passphrase
//	Header.Offset     payload: the disk that a guest sees, encrypted
//
// # Headers
//
// A header may come from anywhere, a guest for instance. Read takes the copy that
// cryptsetup takes: the one with the right checksum and the higher sequence number.
// It refuses what this package does not implement, and a header that would have
// cryptsetup use more memory or time than a passphrase is worth. As it is
// cryptsetup that is to be protected, nothing may mean one thing here and another
// there: names in JSON that differ only in case, or come twice, are refused.
//
// # Payload
//
// AES-XTS, each sector by itself. Its tweak is its number, which counts units of 512
// bytes from the start of the payload for every sector size, plus the segment's
// iv_tweak (dm-crypt's plain64 without iv_large_sectors, which LUKS2 never sets):
// with sectors of 4096 bytes it is 0, 8, 16, …
//
// On amd64 eight blocks at a time pass through the processor's own instructions, in
// assembly; x/crypto/xts gives it one after the other, and it waits for most of them.
// Elsewhere it is crypto/aes: without such instructions there either, how long it takes
// depends on the key.
package luks
