// Package caibx reads and writes the indexes of casync and desync (.caibx files), and the chunks of
// their chunk stores.
//
// An index lists the chunks of one file: where each chunk ends, and the digest of its bytes, which is
// the id of the chunk. A reader that has an older version of a file, and the indexes of both versions,
// knows which chunks of the new version are missing. An index never decides which bytes are right: only the
// digest of the whole file does.
//
//	Reader    yields the items of an index, one by one; rejects whatever casync rejects
//	Writer    writes an index that casync and desync read
//	Table     finds the items of an index by their ids
//	Cut       makes the index of a file
//	Chunker   finds the ends of the content-defined chunks of a stream, as casync does
//	Packer    packs a chunk for a chunk store
//	Unpacker  unpacks a chunk of a chunk store, and verifies it
//
// # Format
//
// All numbers have 64 bits and are little-endian.
//
//	offset       value
//	0            48, the size of the header
//	8            the magic number of an index
//	16           feature flags
//	24, 32, 40   the least, average and greatest size of a chunk
//	48           2^64-1, the size of a table
//	56           the magic number of a table
//	64 + 40·i    item i: the end of the chunk in the file, and the id of the chunk (32 bytes)
//	64 + 40·n    the tail: 0, 0, 48, the size of the table, the magic number of a tail
//
// # Promises
//
//  1. Everything that is read is untrusted. No memory is allocated by a number in an index or in a
//     packed chunk.
//  2. The memory does not depend on the size of the index or of the file. Only Packer and Unpacker have
//     a whole chunk in memory.
//  3. A Chunker cuts a file exactly as "casync make" does with the same sizes of chunks.
//
// # Reading order
//
// format.go (Header, Item, ID, Digest), reader.go, writer.go, table.go, cut.go, chunker.go with
// buzhash.go, chunkfile.go.
package caibx
