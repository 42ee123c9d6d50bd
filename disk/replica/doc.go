// Package replica reads a volume from the folder of a Longhorn replica. The result is the state of
// the volume at a snapshot, or its head, as one flat disk.
//
//	<disk>/replicas/<volume>-<hex>/volume.meta                size, head, backing image, state
//	                               volume-head-NNN.img        the layer that the volume writes to
//	                               volume-head-NNN.img.meta   its Parent
//	                               volume-snap-<name>.img     the layer that was written before a snapshot
//	                               volume-snap-<name>.img.meta
//	                               revision.counter           number of writes to the volume
//
// # How layers are combined
//
//	Open (open.go, metadata.go)
//	       volume.meta -> head or snapshot -> its Parent -> … -> the layer without Parent
//	       -> the backing image of BackingFilePath, on the disks of this node
//	read (source.go, resolver.go, fiemap.go)
//	       for each sector of 4096 bytes: the bytes of the newest layer that has an extent there,
//	       otherwise those of the backing image, otherwise zeros
//
// Rules:
//
//  1. Extents are those that FIEMAP returns. A preallocated extent that was never written
//     counts as zeros and hides older layers, as in Longhorn's own engine. SEEK_DATA would
//     return it as a hole, so a file system without FIEMAP is an error.
//  2. A layer from before an expansion is shorter than the volume. After its end, only older
//     layers and the backing image are used.
//  3. Names are taken from file names and from Parent, never from the Name in a .meta. No name
//     can refer to a file outside the folder. Of the path of the backing image only the image
//     name is used, so the path cannot name another file of the machine.
//  4. A replica that is being rebuilt, or that Longhorn marked as failed, is rejected. The head
//     is also rejected while a process has the volume open, and after a process exited without
//     closing it. Snapshots are consistent even then.
//  5. Memory is limited to a few hundred extents for each layer: extents are read when needed.
//  6. Other programs can change the layers while they are read. Unchanged detects this, and
//     Fingerprint detects whether a later Open returns a different disk.
package replica
