// Package replica reads a volume as it was at one of its snapshots out of the folder
// that Longhorn keeps a replica of it in, as one flat disk.
//
//	<disk>/replicas/<volume>-<hex>/volume.meta                size, head, image below, state
//	                               volume-head-NNN.img        what is written to
//	                               volume-head-NNN.img.meta   its Parent
//	                               volume-snap-<name>.img     what was written before a snapshot
//	                               volume-snap-<name>.img.meta
//	                               revision.counter           how often the volume was written to
//
// # How layers become a disk
//
//	Open   volume.meta -> head or snapshot -> its Parent -> … -> one without Parent
//	       -> the image that BackingFilePath names, from this node's disks
//	walk   at each sector of 4096 bytes: the newest layer that has an extent there
//	       wins, with the bytes it has; where none has, the image below; else zeros
//	       go on where that extent ends, or where that of a newer layer begins
//
// What follows from it:
//
//  1. An extent is what FIEMAP tells of. One that is preallocated and was never
//     written counts as zeros and hides what is older, as in Longhorn's own engine.
//     SEEK_DATA takes it for a hole, so that without FIEMAP nothing is read.
//  2. A layer that is shorter than the volume, from before an expansion, has nothing
//     behind its end: what is older shows there, and that is the image below at most.
//  3. Names come from the names of files and from Parent, never from the Name of a
//     .meta, and none leads out of the folder. The path of the image below is taken
//     for the name of one only: no other file of the machine can be meant by it.
//  4. A replica that is being rebuilt or was given up is refused, and so is the head
//     while a process has the volume open, or died with it. Snapshots are sound then.
//  5. Memory is that of a few hundred extents a layer, however many a layer has: they
//     are asked for as the reading comes to them.
//  6. Nobody is kept from changing the layers while they are read. Unchanged tells
//     whether somebody did, and Fingerprint whether it is still the same disk later.
package replica
