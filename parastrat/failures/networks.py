"""What ends a job between nodes, and what NCCL says where it does not say why."""

from __future__ import annotations

from parastrat.failures.failure import AS_SEEN, GUIDE, NCCL, Blames, Failure, known

NETWORKS: tuple[Failure, ...] = (
    known(
        Blames.NETWORK,
        r"Bootstrap : no socket interface found",
        "NCCL_SOCKET_IFNAME names no interface of this node",
        "correct or unset it; `parastrat probe` lists the interfaces",
        NCCL + "src/bootstrap.cc",
    ),
    known(
        Blames.NETWORK,
        r"Call to ibv_modify_qp failed",
        "two RDMA devices do not reach each other: a wrong GID, or rails that are not joined",
        "unset NCCL_IB_GID_INDEX (NCCL 2.21 and later find it), and check the subnets that show_gids lists",
        GUIDE + "troubleshooting.html",
    ),
    known(
        Blames.NETWORK,
        r"NET/IB ?: Got completion from peer .* with (?:status|error)=?",
        "a message over RDMA was not answered: a link, congestion, or a filter between two nodes",
        "run nccl-tests between the named nodes; NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT bridge short gaps",
        NCCL + "src/transport/net_ib",
    ),
    known(
        Blames.NETWORK,
        r"failed to listen on any local network address.*EADDRINUSE|address already in use|EADDRINUSE",
        "another job, or what is left of one, has the port",
        "take another: --rdzv-endpoint HOST:PORT, or MASTER_PORT",
        AS_SEEN,
    ),
    known(
        Blames.NETWORK,
        r"waiting for clients\. (?:\d+)/(?:\d+) clients joined",
        "some ranks never joined",
        "start the same command on every node, with the same number of nodes and ranks",
        AS_SEEN,
    ),
    known(
        Blames.NETWORK,
        r"The client socket has timed out after \d+ ?ms while trying to connect to \(",
        "rank 0's host and port cannot be reached",
        "check the endpoint's name and port, and the firewall between the nodes",
        AS_SEEN,
    ),
    known(
        Blames.NETWORK,
        r"Unable to find address for: ",
        "GLOO_SOCKET_IFNAME names no interface; it takes whole names, without NCCL's ^ and prefixes",
        "name an interface that `ip addr` shows, or unset it",
        AS_SEEN,
    ),
    known(
        Blames.NETWORK,
        r"Gloo connectFullMesh failed",
        "ranks reach each other by no address: a host's own name may stand for 127.0.0.1",
        "set GLOO_SOCKET_IFNAME to the interface that the nodes share",
        "https://github.com/aws-samples/aws-do-eks/issues/50",
    ),
)

#: the cause stands elsewhere
UNSAID: tuple[Failure, ...] = (
    known(
        Blames.DEVICE,
        r"Cuda failure|unhandled cuda error",
        "a call of CUDA failed inside of NCCL",
        "run again with NCCL_DEBUG=INFO, which names it; look for Xid errors with dmesg",
        NCCL + "src/init.cc",
    ),
    known(
        Blames.SETUP,
        r"invalid usage \(run with NCCL_DEBUG=WARN",
        "NCCL was called in a way that it does not allow, mostly two ranks on one GPU",
        "run again with NCCL_DEBUG=WARN, which says how",
        NCCL + "src/init.cc",
    ),
    known(
        Blames.NETWORK,
        r"unhandled system error",
        "a call of the system failed inside of NCCL: sockets, shared memory or RDMA",
        "run again with NCCL_DEBUG=WARN, and read the line before",
        NCCL + "src/init.cc",
    ),
)
