// Package outfile writes an image out to a file, or to a stream, for people: sparse,
// or packed by gzip or zstd.
//
// # How bytes become a file
//
//	Create    FILE.image-part, locked; what is there of an earlier run is not believed
//	Resume    read it: as far as its chunks are those of the manifest it stays
//	Put       chunk after chunk, in order; zeros become holes
//	Commit    checksum of the whole -> sync -> rename to FILE -> sync of the folder
//
// Nothing but the part is left by a run that ends in the middle, however it ends, and
// nothing is remembered beside it: the manifest tells what of it is right. So it does
// not matter how old a part is, or of which generation of the image.
//
// # Packed files
//
// In a file each chunk of the image is packed by itself, as a member of a gzip file (RFC
// 1952) or a frame of a zstd file (RFC 8878). A reader unpacks them one after the other
// as if they were one. A member says how long it is, in an extra field BI of its header;
// ahead of a frame a skippable frame with four bytes says it. That is what Resume finds
// its way by. What is packed into a stream is one member or frame: who unpacks it has to
// notice when it ends too early.
package outfile
