// Package edit changes the address, the index and the checksum of images in the files of a config directory, and nothing
// else in them.
//
//	Edit(snapshot, wanted values of images):
//	  for each image: find its values where they are written, and replace their text (replace.go)
//	  load the directory with the new files: the configuration must differ in the wanted values only (prove.go)
//	Write all files durably
//
// # Promises
//
//  1. Each byte outside of the replaced values stays: comments, order, quotes and line ends.
//  2. A value keeps its style: plain, quoted, or a block.
//  3. What cannot be proved is not written. A missing value is a Refusal. So is a value that an anchor shares, that an
//     expression computes, or that is written with escapes or on several lines. A Refusal has the place and the lines to
//     write. It concerns one image only.
//  4. A file is replaced as a whole. Before that, all files must be writable and still have the content that was read. A
//     file keeps its mode, and its owner if root writes it. A symlink to it stays.
//
// # Reading order
//
// edit.go (Edit, Values, Refusal), replace.go, prove.go, write.go.
package edit
