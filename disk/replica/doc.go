// Package replica reads a volume from the folder of a Longhorn replica, as it was at one of its
// snapshots, as one flat disk.
//
//	<disk>/replicas/<volume>-<hex>/volume.meta                size, head, backing image, state
//	                               volume-head-NNN.img        the layer that the volume writes to
//	                               volume-head-NNN.img.meta   its Parent
//	                               volume-snap-<name>.img     the layer that was written before a snapshot
//	                               volume-snap-<name>.img.meta
//	                               revision.counter           number of writes to the volume
//
// # How layers become a disk
//
//	Open (open.go, metadata.go)
//	       volume.meta -> head or snapshot -> its Parent -> … -> the layer without Parent
//	       -> the backing image of BackingFilePath, on the disks of this node
//	read (source.go, resolver.go, fiemap.go)
//	       for each sector of 4096 bytes: the bytes of the newest layer that has an extent there,
//	       else those of the backing image, else zeros
//
// Rules:
//
//  1. Extents are those that FIEMAP returns. A preallocated extent that was never written
//     counts as zeros and hides older layers, as in Longhorn's own engine. SEEK_DATA would
//     return it as a hole, so without FIEMAP nothing is read.
//  2. A layer from before an expansion is shorter than the volume. After its end, only older
//     layers and the backing image count.
//  3. Names are taken from file names and from Parent, never from the Name in a .meta, and no
//     name leads out of the folder. Of the path of the backing image only the image name counts:
//     it cannot name any other file of the machine.
//  4. A replica that is being rebuilt or that Longhorn marked as failed is refused. So is the
//     head while a process has the volume open, or if a process died while it had. Snapshots are
//     consistent then.
//  5. Memory is that of a few hundred extents for each layer: extents are read as needed.
//  6. Other programs can change the layers while they are read. Unchanged detects that, and
//     Fingerprint whether a later Open gives the same disk.
package replica
